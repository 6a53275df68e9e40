import ApusCore
import ApusMedia
import CApusMemory
import NIOCore

/// The format of a log's files. All numbers are big-endian.
///
/// A file has two copies of its header, of one block each, and groups. A group begins at a block, so that a write
/// that a power cut tears never harms a group that is durable. It has a header of 64 bytes, a table, and sections. A
/// section has the frames of one channel, and the table says where each is, with its CRC-32C. The group's header has
/// the CRC-32C of itself and of the table. So the table is enough to know what is in a group.
///
/// A file is used again and again. Each use has a higher generation and a random identity. A group names its file's
/// identity: the content of an earlier use, or what a camera sends, is never taken for a group.
enum LogFormat {
    static let blockByteCount = 4096
    /// Where the groups begin.
    static let groupsOffset = 2 * blockByteCount
    static let groupHeaderByteCount = 64
    /// The bytes of a frame in its section, beside its content.
    static let frameHeaderByteCount = 20

    static func checksum(_ bytes: UnsafeRawBufferPointer) -> UInt32 { apus_crc32c(0, bytes.baseAddress, bytes.count) }

    static func checksum(_ buffer: ByteBuffer) -> UInt32 { buffer.withUnsafeReadableBytes { checksum($0) } }

    static func checksum(_ bytes: some Collection<UInt8>) -> UInt32 {
        bytes.withContiguousStorageIfAvailable { checksum(UnsafeRawBufferPointer($0)) }
            ?? checksum(ByteBuffer(bytes: bytes))
    }

    /// The size in whole blocks, in bytes.
    static func padded(_ byteCount: Int) -> Int {
        (byteCount + blockByteCount - 1) / blockByteCount * blockByteCount
    }
}

/// The header of a file.
struct LogFileHeader: Sendable, Hashable {
    static let magic: UInt32 = 0x4150_4c46  // "APLF"
    static let version: UInt16 = 1

    /// The file's number, which its name has too.
    var slot: UInt32
    /// The number of the file's use. A later use of any file has a higher one.
    var generation: UInt64
    /// Random, for each use.
    var identity: UInt64
    /// The generation of the file that was written before; 0: none.
    var previousGeneration: UInt64
    /// The last group of that file that was durable. A later one failed.
    var previousEnd: UInt64
    /// Empty if the file is not sealed.
    var wrappedKey: [UInt8]

    func encoded() -> ByteBuffer {
        var fields = ByteBuffer()
        fields.writeMultipleIntegers(Self.version, UInt16(wrappedKey.count), slot, generation, identity)
        fields.writeMultipleIntegers(previousGeneration, previousEnd)
        fields.writeBytes(wrappedKey)
        fields.writeRepeatingByte(0, count: LogFormat.blockByteCount - 8 - fields.readableBytes)
        var block = ByteBuffer()
        block.writeMultipleIntegers(Self.magic, LogFormat.checksum(fields))
        block.writeImmutableBuffer(fields)
        return block
    }

    /// Nil if the block is not a valid header.
    init?(decoding block: some Collection<UInt8>) {
        var buffer = ByteBuffer(bytes: block)
        guard buffer.readableBytes == LogFormat.blockByteCount,
            let (magic, checksum) = buffer.readMultipleIntegers(as: (UInt32, UInt32).self), magic == Self.magic,
            checksum == LogFormat.checksum(buffer),
            let (version, keyByteCount, slot, generation, identity) = buffer.readMultipleIntegers(
                as: (UInt16, UInt16, UInt32, UInt64, UInt64).self),
            version == Self.version, Int(keyByteCount) <= LogKey.wrappedByteCountMax,
            let (previousGeneration, previousEnd) = buffer.readMultipleIntegers(as: (UInt64, UInt64).self),
            let wrappedKey = buffer.readBytes(length: Int(keyByteCount))
        else { return nil }
        (self.slot, self.generation, self.identity) = (slot, generation, identity)
        (self.previousGeneration, self.previousEnd, self.wrappedKey) = (previousGeneration, previousEnd, wrappedKey)
    }

    init(
        slot: UInt32, generation: UInt64, identity: UInt64, previousGeneration: UInt64, previousEnd: UInt64,
        wrappedKey: [UInt8]
    ) {
        (self.slot, self.generation, self.identity) = (slot, generation, identity)
        (self.previousGeneration, self.previousEnd, self.wrappedKey) = (previousGeneration, previousEnd, wrappedKey)
    }
}

/// The header of a group.
struct LogGroupHeader: Sendable, Hashable {
    static let magic: UInt32 = 0x4150_4c47  // "APLG"

    var checksum: UInt32
    var identity: UInt64
    /// Dense over all groups of the log that were written without an error.
    var number: UInt64
    /// All groups of this file up to this number were durable when the group was written.
    var durable: UInt64
    /// The size with the padding, in bytes.
    var byteCount: Int
    var tableByteCount: Int
    var entryCount: Int

    /// The header and the table.
    ///
    /// - Parameter byteCount: of the group.
    static func bytes(
        identity: UInt64, number: UInt64, durable: UInt64, byteCount: Int, table: ByteBuffer, entryCount: Int
    ) -> ByteBuffer {
        var fields = ByteBuffer()
        fields.writeMultipleIntegers(identity, number, durable)
        fields.writeMultipleIntegers(UInt32(byteCount), UInt32(table.readableBytes), UInt32(entryCount))
        fields.writeRepeatingByte(0, count: LogFormat.groupHeaderByteCount - 8 - fields.readableBytes)
        fields.writeImmutableBuffer(table)
        var bytes = ByteBuffer()
        bytes.reserveCapacity(byteCount)
        bytes.writeMultipleIntegers(magic, LogFormat.checksum(fields))
        bytes.writeImmutableBuffer(fields)
        return bytes
    }

    /// True if the bytes begin as a group of this file.
    static func isNamed(_ bytes: some Collection<UInt8>, identity: UInt64) -> Bool {
        var buffer = ByteBuffer(bytes: bytes.prefix(16))
        guard let (magic, _, own) = buffer.readMultipleIntegers(as: (UInt32, UInt32, UInt64).self) else { return false }
        return magic == Self.magic && own == identity
    }

    /// Nil if the bytes do not begin with a header of this file, or with one that no writer has made. The checksum is
    /// not checked.
    init?(decoding bytes: some Collection<UInt8>, identity: UInt64) {
        var buffer = ByteBuffer(bytes: bytes.prefix(LogFormat.groupHeaderByteCount))
        guard buffer.readableBytes == LogFormat.groupHeaderByteCount,
            let (magic, checksum, own) = buffer.readMultipleIntegers(as: (UInt32, UInt32, UInt64).self),
            magic == Self.magic, own == identity,
            let (number, durable) = buffer.readMultipleIntegers(as: (UInt64, UInt64).self),
            let (byteCount, tableByteCount, entryCount) = buffer.readMultipleIntegers(
                as: (UInt32, UInt32, UInt32).self),
            Int(byteCount) % LogFormat.blockByteCount == 0,
            Int(byteCount) >= LogFormat.groupHeaderByteCount + Int(tableByteCount), durable < number
        else { return nil }
        (self.checksum, self.identity, self.number, self.durable) = (checksum, own, number, durable)
        self.byteCount = Int(byteCount)
        (self.tableByteCount, self.entryCount) = (Int(tableByteCount), Int(entryCount))
    }
}

/// The frames of a channel up to a position are released, as far as they are in groups up to a number.
struct LogRelease: Sendable, Hashable {
    var through: FramePosition
    var number: UInt64

    /// True if the other one releases nothing else.
    func covers(_ other: Self) -> Bool { through >= other.through && number >= other.number }
}

/// A section of a group: frames of one channel and epoch, in order.
struct LogSection: Sendable, Hashable {
    var epoch: UInt32
    var first: UInt64
    var last: UInt64
    /// 0 for a section that was torn and is not read any more.
    var frameCount: Int
    /// When the first frame was received.
    var receivedMicroseconds: Int64
    /// The size in the file.
    var byteCount: Int
    var checksum: UInt32
}

/// An entry of a group's table.
enum LogEntry: Sendable, Hashable {
    case frames(channel: ExactText, LogSection)
    case release(channel: ExactText, LogRelease)

    /// The bytes of an entry beside the channel's name: the larger kind.
    static let byteCount = 1 + 2 + 4 + 8 + 8 + 4 + 8 + 4 + 4

    func encode(into buffer: inout ByteBuffer) {
        switch self {
        case .frames(let channel, let section):
            buffer.writeInteger(UInt8(1))
            buffer.writeMultipleIntegers(UInt16(channel.string.utf8.count), section.epoch, section.first, section.last)
            buffer.writeMultipleIntegers(
                UInt32(section.frameCount), section.receivedMicroseconds, UInt32(section.byteCount), section.checksum)
            buffer.writeString(channel.string)
        case .release(let channel, let release):
            buffer.writeInteger(UInt8(2))
            buffer.writeMultipleIntegers(
                UInt16(channel.string.utf8.count), release.through.epoch, release.through.sequence, release.number)
            buffer.writeString(channel.string)
        }
    }

    /// Nil if the bytes are not an entry.
    init?(from buffer: inout ByteBuffer) {
        guard let kind = buffer.readInteger(as: UInt8.self) else { return nil }
        switch kind {
        case 1:
            guard
                let (nameByteCount, epoch, first, last) = buffer.readMultipleIntegers(
                    as: (UInt16, UInt32, UInt64, UInt64).self),
                let (frameCount, received, byteCount, checksum) = buffer.readMultipleIntegers(
                    as: (UInt32, Int64, UInt32, UInt32).self),
                let channel = buffer.readString(length: Int(nameByteCount)), first <= last
            else { return nil }
            self = .frames(
                channel: ExactText(channel),
                LogSection(
                    epoch: epoch, first: first, last: last, frameCount: Int(frameCount),
                    receivedMicroseconds: received, byteCount: Int(byteCount), checksum: checksum))
        case 2:
            guard
                let (nameByteCount, epoch, sequence, number) = buffer.readMultipleIntegers(
                    as: (UInt16, UInt32, UInt64, UInt64).self),
                let channel = buffer.readString(length: Int(nameByteCount))
            else { return nil }
            let through = FramePosition(epoch: epoch, sequence: sequence)
            self = .release(channel: ExactText(channel), LogRelease(through: through, number: number))
        default: return nil
        }
    }

    /// Nil if the bytes are not exactly so many entries.
    static func table(_ buffer: ByteBuffer, count: Int) -> [LogEntry]? {
        var buffer = buffer
        var entries: [LogEntry] = []
        for _ in 0..<count {
            guard let entry = LogEntry(from: &buffer) else { return nil }
            entries.append(entry)
        }
        return buffer.readableBytes == 0 ? entries : nil
    }
}

extension LoggedFrame {
    func encode(into buffer: inout ByteBuffer) {
        buffer.writeMultipleIntegers(position.sequence, receivedMicroseconds, UInt32(content.readableBytes))
        buffer.writeImmutableBuffer(content)
    }

    /// The frames of a section; nil if the bytes are not exactly so many.
    static func frames(_ buffer: ByteBuffer, of section: LogSection) -> [LoggedFrame]? {
        var buffer = buffer
        var frames: [LoggedFrame] = []
        for _ in 0..<section.frameCount {
            guard
                let (sequence, received, count) = buffer.readMultipleIntegers(as: (UInt64, Int64, UInt32).self),
                let content = buffer.readSlice(length: Int(count)), (section.first...section.last).contains(sequence)
            else { return nil }
            let position = FramePosition(epoch: section.epoch, sequence: sequence)
            frames.append(LoggedFrame(position: position, receivedMicroseconds: received, content: content))
        }
        return buffer.readableBytes == 0 ? frames : nil
    }
}
