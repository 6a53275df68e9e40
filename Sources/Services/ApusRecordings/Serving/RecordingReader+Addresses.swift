package import ApusContract
package import ApusCore
package import ApusSessions
import ApusStorage

// Addresses of play lists (IV-E5).
extension RecordingReader {
    /// The path below which the files of addresses are.
    package static let path = "/v1/recordings"
    package static let listName = "index.m3u8"
    package static let exportName = "export.mp4"

    /// The address of a play list of a range, as far as one play list goes.
    ///
    /// - Throws: 21031 if the range or the zone is not valid.
    package func address(
        of channel: RecordedChannel, _ request: ClientGetRecordingAddressRequest, for session: Session
    ) async throws(ApusError) -> ClientGetRecordingAddressResponse {
        guard (-RecordingDayScan.zoneMax...RecordingDayScan.zoneMax).contains(request.timezone) else {
            throw ApusError(.badParameter, "a time zone is at most \(RecordingDayScan.zoneMax) seconds from UTC")
        }
        var end = request.end
        if end == 0 {
            let newest = try await index.head(of: channel)?.body.endUs ?? 0
            end = max(request.start + 1, -(-newest).floored(by: 1_000_000))
        }
        let range = try Self.range(request.start, end)
        let (known, knownUntil) = try await segments(of: channel, range.microseconds)
        let selection = RecordingSelection(
            known, in: range, countMax: limits.playListSegmentsMax, knownUntil: knownUntil)
        var reply = ClientGetRecordingAddressResponse()
        (reply.startTime, reply.endTime, reply.endflag) = (request.start, selection.end, selection.isEnd)
        // A list that grows has what comes behind its last segment. What is in a list of its own is asked for first.
        let isGrowing = request.growing && selection.isEnd
        guard !selection.segments.isEmpty || isGrowing else { return reply }
        let place = RecordingAddress(
            account: channel.account, source: channel.source, start: request.start,
            end: isGrowing ? request.end : selection.end, isGrowing: isGrowing, isEnd: selection.isEnd)
        let sealed = try sessions.seal(session, channel.device, place.bytes, limits.addressLifetime)
        let zone = Int64(request.timezone)
        let query =
            "?starttime=\(CivilTime(seconds: reply.startTime + zone).digits)"
            + "&endtime=\(CivilTime(seconds: reply.endTime + zone).digits)"
        reply.url = "\(origin)\(Self.path)/\(sealed.text)/\(Self.listName)\(query)"
        if owns(channel, session), !selection.segments.isEmpty {
            reply.exportURL = "\(origin)\(Self.path)/\(sealed.text)/\(Self.exportName)\(query)"
        }
        reply.expires = sealed.expires
        return reply
    }
}
