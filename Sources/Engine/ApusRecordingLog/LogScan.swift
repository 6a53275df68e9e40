import ApusCore
import NIOCore

/// A group that was found in a file.
struct FoundGroup {
    var header: LogGroupHeader
    var offset: Int
    var entries: [LogEntry]

    /// The sections that are not torn, with their places in the group.
    var sections: [PlacedSection] { allSections.filter { $0.section.frameCount > 0 } }

    var allSections: [PlacedSection] {
        var offset = LogFormat.groupHeaderByteCount + header.tableByteCount
        return entries.enumerated().compactMap { part, entry in
            guard case .frames(let channel, let section) = entry else { return nil }
            defer { offset += section.byteCount }
            return PlacedSection(channel: channel, section: section, offset: offset, part: UInt32(part))
        }
    }

    /// The group's bytes, in whose table the sections that are not whole are marked as torn.
    func bytes(_ bytes: [UInt8], whole: Set<UInt32>, _ cipher: LogCipher) throws(ApusError) -> ByteBuffer {
        var table = ByteBuffer()
        for (part, entry) in entries.enumerated() {
            guard case .frames(let channel, var section) = entry, !whole.contains(UInt32(part)) else {
                entry.encode(into: &table)
                continue
            }
            section.frameCount = 0
            LogEntry.frames(channel: channel, section).encode(into: &table)
        }
        let place = LogPlace(identity: header.identity, group: header.number, part: LogPlace.table)
        var group = LogGroupHeader.bytes(
            identity: header.identity, number: header.number, durable: header.durable, byteCount: header.byteCount,
            table: try cipher.seal(table, at: place), entryCount: entries.count)
        group.writeBytes(bytes[group.readableBytes...])
        return group
    }
}

/// Finds the groups of a file. Only tables are read.
///
/// After what is damaged, the search continues with the next block that begins a later group of the file's identity. So
/// one damaged table costs one group, and there is no valid group behind the end that this finds.
struct LogScan {
    /// The bytes that are read at once.
    private static let windowByteCount = 128 << 10

    let file: LogFile
    let identity: UInt64
    let cipher: LogCipher
    let byteCount: Int

    private(set) var groups: [FoundGroup] = []
    /// The end of the last group.
    private(set) var end = LogFormat.groupsOffset
    /// Groups that are damaged or torn, and gaps between groups.
    private(set) var damagedCount = 0
    private var window: (offset: Int, bytes: [UInt8]) = (0, [])

    init(file: LogFile, identity: UInt64, cipher: LogCipher, byteCount: Int) {
        (self.file, self.identity, self.cipher, self.byteCount) = (file, identity, cipher, byteCount)
    }

    mutating func run() {
        var offset = LogFormat.groupsOffset
        var damagedSinceEnd = 0
        while offset + LogFormat.blockByteCount <= byteCount {
            switch group(at: offset) {
            case .found(let group):
                if offset > end, damagedSinceEnd == 0 { damagedCount += 1 }
                groups.append(group)
                offset += group.header.byteCount
                (end, damagedSinceEnd) = (offset, 0)
            case .damaged:
                damagedCount += 1
                damagedSinceEnd += 1
                offset += LogFormat.blockByteCount
            case .other: offset += LogFormat.blockByteCount
            }
        }
    }

    private enum Found {
        case found(FoundGroup)
        /// It is, or was, a group of this file.
        case damaged
        case other
    }

    private mutating func group(at offset: Int) -> Found {
        guard let head = bytes(at: offset, count: LogFormat.groupHeaderByteCount) else { return .other }
        guard LogGroupHeader.isNamed(head, identity: identity) else { return .other }
        guard let header = LogGroupHeader(decoding: head, identity: identity) else { return .damaged }
        let tableEnd = LogFormat.groupHeaderByteCount + header.tableByteCount
        guard offset + header.byteCount <= byteCount, let part = bytes(at: offset, count: tableEnd),
            LogFormat.checksum(part.dropFirst(8)) == header.checksum
        else { return .damaged }
        // A valid group with an old number is the copy of an earlier one.
        guard header.number > groups.last?.header.number ?? 0 else { return .damaged }
        let place = LogPlace(identity: identity, group: header.number, part: LogPlace.table)
        guard let table = cipher.open(Array(part.dropFirst(LogFormat.groupHeaderByteCount)), at: place),
            let entries = LogEntry.table(table, count: header.entryCount)
        else { return .damaged }
        let group = FoundGroup(header: header, offset: offset, entries: entries)
        let bodyEnd = group.allSections.last.map { $0.offset + $0.section.byteCount } ?? 0
        return bodyEnd <= header.byteCount ? .found(group) : .damaged
    }

    /// Bytes of the file, which are read ahead; nil beyond its end or if it cannot be read.
    private mutating func bytes(at offset: Int, count: Int) -> ArraySlice<UInt8>? {
        let start = offset - window.offset
        if start < 0 || start + count > window.bytes.count {
            let countMax = max(count, Self.windowByteCount)
            guard let bytes = try? file.read(at: offset, countMax: countMax), bytes.count >= count else { return nil }
            window = (offset, bytes)
        }
        let first = offset - window.offset
        return window.bytes[first..<first + count]
    }
}
