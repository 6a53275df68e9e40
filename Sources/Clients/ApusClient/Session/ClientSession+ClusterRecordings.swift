public import ApusContract
public import ApusCore
public import Foundation
import SwiftProtobuf

// Recordings in the cluster (IV-E2 to IV-E5, docs/cluster-recordings.md). Those at the device itself are in
// `recordings(of:source:from:to:)`.

extension ClientSession {
    /// Whose recordings of which channel a request concerns.
    public struct RecordedSource: Sendable, Hashable {
        public var device: DeviceID
        public var source: UInt16
        /// Nil: the device's account, or the own one if this client has no right to the device any more.
        public var account: AccountID?

        public init(_ device: DeviceID, source: UInt16 = 0, account: AccountID? = nil) {
            (self.device, self.source, self.account) = (device, source, account)
        }
    }

    /// A time of which there is a recording without a gap.
    public struct ClusterRecording: Sendable, Hashable {
        public var start: Date
        public var end: Date
        /// Why it ended; ``ClientRecordingEnd/unspecified`` if it continues.
        public var reason: ClientRecordingEnd
    }

    /// Addresses of recordings, which players load without a token.
    public struct ClusterRecordingAddress: Sendable, Hashable {
        /// A play list of HLS. If it begins with `/`, it is below the address of any node's HTTP listener.
        public var playList: String
        /// The same as one MP4 file; nil if this client may not export it.
        public var export: String?
        public var start: Date
        public var end: Date
        /// False: there is more. Ask again, from ``end`` on.
        public var isEnd: Bool
        public var expires: Date
    }

    /// How a channel is recorded (IV-E2).
    ///
    /// - Throws: 8002 if there is no such device, or this client may not view it; otherwise as ``ask(_:timeout:)``.
    public func recordingPlan(of source: RecordedSource) async throws(ApusError) -> ClientRecordingPlan {
        try await ask(
            ClientGetRecordingPlanRequest.with {
                ($0.device, $0.source) = (source.device.rawValue, UInt32(source.source))
                $0.account = source.account?.rawValue ?? ""
            })
    }

    /// Records a channel of a device of this account, or changes how it is recorded.
    ///
    /// - Parameters:
    ///   - days: how long recordings are kept, 1 to 3650.
    ///   - byteCountMax: the most bytes that are kept; 0: no bound of its own.
    ///   - start: nil: at once.
    ///   - end: nil: without an end.
    /// - Throws: 8002 if the device is not this account's, 20011 if it is disabled, 21031 if a number is out of its
    ///   range; otherwise as ``ask(_:timeout:)``.
    @discardableResult
    public func record(
        _ source: RecordedSource, _ mode: ClientRecordingMode = .continuous, days: Int, byteCountMax: UInt64 = 0,
        from start: Date? = nil, to end: Date? = nil
    ) async throws(ApusError) -> ClientRecordingPlan {
        try await ask(
            ClientSetRecordingPlanRequest.with {
                ($0.device, $0.source, $0.mode) = (source.device.rawValue, UInt32(source.source), mode)
                ($0.days, $0.bytesMax) = (UInt32(clamping: days), byteCountMax)
                ($0.start, $0.end) = (start.map(Self.seconds) ?? 0, end.map(Self.seconds) ?? 0)
            })
    }

    /// Ends the recording of a channel. What is recorded is kept for its days.
    ///
    /// - Throws: as ``record(_:_:days:byteCountMax:from:to:)``.
    @discardableResult
    public func stopRecording(_ source: RecordedSource) async throws(ApusError) -> ClientRecordingPlan {
        try await ask(
            ClientEndRecordingPlanRequest.with {
                ($0.device, $0.source) = (source.device.rawValue, UInt32(source.source))
            })
    }

    /// The beginnings of the days that have recordings (IV-E3), the oldest first.
    ///
    /// - Parameter zone: whose offset from UTC at present counts for all days.
    /// - Throws: as ``recordingPlan(of:)``.
    public func clusterRecordingDays(
        of source: RecordedSource, in zone: TimeZone = .current
    ) async throws(ApusError) -> [Date] {
        let found = try await ask(
            ClientListRecordingDaysRequest.with {
                ($0.device, $0.source) = (source.device.rawValue, UInt32(source.source))
                ($0.account, $0.timezone) = (source.account?.rawValue ?? "", Int32(zone.secondsFromGMT()))
            })
        return found.list.map { Date(timeIntervalSince1970: Double($0)) }
    }

    /// The time line of a range of at most a day (IV-E4).
    ///
    /// - Throws: 21031 if the end is not behind the start; otherwise as ``recordingPlan(of:)``.
    public func clusterRecordings(
        of source: RecordedSource, from start: Date, to end: Date
    ) async throws(ApusError) -> [ClusterRecording] {
        let found = try await ask(
            ClientListRecordingTimesRequest.with {
                ($0.device, $0.source) = (source.device.rawValue, UInt32(source.source))
                $0.account = source.account?.rawValue ?? ""
                ($0.start, $0.end) = (Self.seconds(start), Self.seconds(end))
            })
        return found.list.map { time in
            ClusterRecording(
                start: Date(timeIntervalSince1970: Double(time.startMs) / 1000),
                end: Date(timeIntervalSince1970: Double(time.endMs) / 1000), reason: time.reason)
        }
    }

    /// The addresses of a range (IV-E5). The play list is empty if there is no recording up to the returned end.
    ///
    /// - Parameters:
    ///   - end: nil: to the newest recording.
    ///   - isGrowing: the play list grows while the channel is recorded.
    /// - Throws: as ``clusterRecordings(of:from:to:)``.
    public func clusterRecordingAddress(
        of source: RecordedSource, from start: Date, to end: Date? = nil, in zone: TimeZone = .current,
        isGrowing: Bool = false
    ) async throws(ApusError) -> ClusterRecordingAddress {
        let found = try await ask(
            ClientGetRecordingAddressRequest.with {
                ($0.device, $0.source) = (source.device.rawValue, UInt32(source.source))
                ($0.account, $0.timezone) = (source.account?.rawValue ?? "", Int32(zone.secondsFromGMT()))
                ($0.start, $0.end, $0.growing) = (Self.seconds(start), end.map(Self.seconds) ?? 0, isGrowing)
            })
        return ClusterRecordingAddress(
            playList: found.url, export: found.exportURL.isEmpty ? nil : found.exportURL,
            start: Date(timeIntervalSince1970: Double(found.startTime)),
            end: Date(timeIntervalSince1970: Double(found.endTime)), isEnd: found.endflag,
            expires: Date(timeIntervalSince1970: Double(found.expires)))
    }

    /// Keeps the recordings of a range beyond their days, and does not let them be deleted.
    ///
    /// - Parameter until: nil: without an end.
    /// - Returns: the number of segments.
    /// - Throws: 8002 if the recordings are not this account's, 21031 if a time is not valid; otherwise as
    ///   ``ask(_:timeout:)``.
    @discardableResult
    public func protectClusterRecordings(
        of source: RecordedSource, from start: Date, to end: Date, until: Date? = nil
    ) async throws(ApusError) -> Int {
        var request = ClientProtectRecordingsRequest.with {
            ($0.device, $0.source) = (source.device.rawValue, UInt32(source.source))
            ($0.account, $0.until) = (source.account?.rawValue ?? "", until.map(Self.seconds) ?? 0)
            ($0.start, $0.end) = (Self.seconds(start), Self.seconds(end))
        }
        var count = 0
        while true {
            let answer = try await ask(request)
            count += Int(answer.count)
            guard !answer.done, answer.endTime > request.start, answer.endTime < request.end else { return count }
            request.start = answer.endTime
        }
    }

    /// Deletes the recordings of a range that are not protected.
    ///
    /// - Returns: the bytes that were deleted.
    /// - Throws: as ``protectClusterRecordings(of:from:to:until:)``.
    @discardableResult
    public func deleteClusterRecordings(
        of source: RecordedSource, from start: Date, to end: Date
    ) async throws(ApusError) -> UInt64 {
        var request = ClientDeleteRecordingsRequest.with {
            ($0.device, $0.source) = (source.device.rawValue, UInt32(source.source))
            $0.account = source.account?.rawValue ?? ""
            ($0.start, $0.end) = (Self.seconds(start), Self.seconds(end))
        }
        var byteCount: UInt64 = 0
        while true {
            let answer = try await ask(request)
            byteCount += answer.bytes
            guard !answer.done, answer.endTime > request.start, answer.endTime < request.end else { return byteCount }
            request.start = answer.endTime
        }
    }

    private static func seconds(_ date: Date) -> Int64 {
        Int64(exactly: date.timeIntervalSince1970.rounded(.down)) ?? 0
    }
}
