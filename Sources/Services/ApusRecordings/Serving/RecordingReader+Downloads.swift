package import ApusClientAPI
package import ApusCore
import ApusMedia
import ApusObjectStore
import ApusSessions
import ApusStorage
import Foundation
import NIOCore
import Synchronization

// The files of addresses: play lists, segments, and exports. Each request reads the index and the right again; while a
// file is sent, the right is read again at intervals, so that one that is lost ends the file.
extension RecordingReader: MediaDownloads {
    package func download(_ file: String, at address: String) async throws(ApusError) -> MediaDownload {
        let sealed = try sessions.open(address)
        guard let place = RecordingAddress(bytes: sealed.content), let device = sealed.session.device else {
            throw ApusError(.tokenInvalid, "the address is of another version")
        }
        let channel = RecordedChannel(account: place.account, device: device, source: place.source)
        let right = RecordingRight(
            reader: self, channel: channel, address: sealed, need: file == Self.exportName ? .own : .view)
        try await right.check()
        switch file {
        case Self.listName: return try await list(place, channel, sealed)
        case Self.exportName: return try await export(place, channel, right)
        default: return try await segment(file, place, channel, right)
        }
    }

    // MARK: - Play lists

    /// How long an end of a list that grows is waited for: segments are sealed later than they end.
    private static let sealSeconds: Int64 = 120

    private func list(
        _ place: RecordingAddress, _ channel: RecordedChannel, _ sealed: SealedAddress
    ) async throws(ApusError) -> MediaDownload {
        var segments = try await segments(in: place, of: channel)
        var kind = HLSPlayList.Kind.complete
        // A complete one may have more than the bound by what ends within its last second.
        if place.isGrowing {
            let isPast = place.end > 0 && now() / 1000 > place.end + Self.sealSeconds
            let isReached = place.end > 0 && (segments.last?.end ?? 0) >= place.end * 1_000_000
            kind = .growing(isEnded: isPast || isReached || segments.count >= limits.playListSegmentsMax)
            segments = Array(segments.prefix(limits.playListSegmentsMax))
        }
        guard !segments.isEmpty || place.isGrowing else { throw Self.unknown }
        let list = HLSPlayList(segments, kind, start: place.start * 1_000_000)
        let text = ByteBuffer(string: list.text)
        return MediaDownload(
            contentType: "application/vnd.apple.mpegurl", tag: Self.tag(of: text), byteCount: text.readableBytes,
            account: sealed.session.account
        ) { range throws(ApusError) in
            text.getSlice(at: range.lowerBound, length: range.count) ?? ByteBuffer()
        }
    }

    /// The segments of an address, in the order of their times.
    private func segments(
        in place: RecordingAddress, of channel: RecordedChannel
    ) async throws(ApusError) -> [RecordedSegment] {
        let end = place.end == 0 ? now() / 1000 + RecordingSelection.secondsMax : place.end
        guard end > place.start else { return [] }
        return try await segments(of: channel, (place.start..<end).microseconds).found.filter(place.has)
    }

    // MARK: - Segments

    private func segment(
        _ file: String, _ place: RecordingAddress, _ channel: RecordedChannel, _ right: RecordingRight
    ) async throws(ApusError) -> MediaDownload {
        guard let (hour, object) = HLSPlayList.place(named: file),
            let record = try await index.store.record(RecordingRecords.hours, RecordingRecords.hourKey(channel, hour))
        else { throw Self.unknown }
        let view = try await view(of: channel)
        let found = RecordedSegment.all([record.body], in: view).first {
            Array($0.record.object.utf8) == Array(object.utf8) && place.has($0)
        }
        guard let found else { throw Self.unknown }
        let name = try RecordingIndex.objectName(channel, hour: hour, object: found.record.object)
        // What is behind the media is for the index alone.
        let byteCount = found.mediaRange.upperBound
        return MediaDownload(
            contentType: "video/mp4", tag: "\(hour)-\(object)-\(byteCount)", byteCount: byteCount,
            secondsKept: max(0, right.address.expires - now() / 1000), account: right.address.session.account
        ) { range throws(ApusError) in
            try await right.checkSometimes()
            guard let part = try await objects.get(name, range: range) else { throw Self.unknown }
            return ByteBuffer(bytes: part.bytes)
        }
    }

    // MARK: - Exports

    private func export(
        _ place: RecordingAddress, _ channel: RecordedChannel, _ right: RecordingRight
    ) async throws(ApusError) -> MediaDownload {
        let segments = try await segments(in: place, of: channel)
        guard !segments.isEmpty else { throw Self.unknown }
        var names: [ObjectName] = []
        for segment in segments {
            names.append(
                try RecordingIndex.objectName(channel, hour: segment.hour, object: segment.record.object))
        }
        let read: @Sendable (Int, Range<Int>) async throws(ApusError) -> ByteBuffer = {
            [names, objects] part, range throws(ApusError) in
            guard let bytes = try await objects.get(names[part], range: range) else { throw Self.unknown }
            return ByteBuffer(bytes: bytes.bytes)
        }
        let (start, end) = (place.start * 1_000_000, place.end == 0 ? Int64.max : place.end * 1_000_000)
        let export = try await RecordingExport(segments, from: start, to: end, read: read)
        let file = export.file
        let zone = CivilTime(seconds: place.start).digits
        return MediaDownload(
            contentType: "video/mp4", tag: export.tag, byteCount: file.byteCount,
            fileName: "\(channel.device.rawValue)-\(channel.source)-\(zone).mp4",
            account: right.address.session.account
        ) { range throws(ApusError) in
            try await right.checkSometimes()
            return try await file.bytes(range) { part, range throws(ApusError) in
                try await read(export.indexes[part], range)
            }
        }
    }

    /// A tag of a text: the same at every node.
    static func tag(of text: ByteBuffer) -> String { RecordingExport.tag(Array(text.readableBytesView)) }
}

/// The right of an address to its recordings, checked again and again.
///
/// Isolation: any task. A `Mutex` guards the time of the last check.
final class RecordingRight: Sendable {
    private let reader: RecordingReader
    private let channel: RecordedChannel
    let address: SealedAddress
    private let need: RecordingReader.Need
    private let checked = Mutex<MonotonicTime?>(nil)

    init(
        reader: RecordingReader, channel: RecordedChannel, address: SealedAddress, need: RecordingReader.Need
    ) {
        (self.reader, self.channel, self.address, self.need) = (reader, channel, address, need)
    }

    /// - Throws: 12001 and 12002 if the token of the address has ended, 8002 if its account has lost the right.
    func check() async throws(ApusError) {
        let now = MonotonicTime.now()
        try reader.sessions.check(address)
        do throws(ApusError) {
            let record = try await reader.sessions.device(channel.device)
            try await reader.check(channel, address.session, record, need)
        } catch {
            throw error.code == .deviceDisabled ? RecordingReader.unknown : error
        }
        checked.withLock { $0 = now }
    }

    /// As ``check()``, at intervals.
    func checkSometimes() async throws(ApusError) {
        let last = checked.withLock { $0 }
        if let last, MonotonicTime.now() - last < reader.limits.rightsInterval { return }
        try await check()
    }
}
