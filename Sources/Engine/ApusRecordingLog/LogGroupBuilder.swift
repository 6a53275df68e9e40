import ApusCore
import ApusMedia
import NIOCore

/// A section with its place in a group.
struct PlacedSection: Sendable {
    var channel: ExactText
    var section: LogSection
    /// From the start of the group.
    var offset: Int
    /// Its place in the table, which also counts releases.
    var part: UInt32
}

/// A group that can be written.
struct LogGroup: Sendable {
    var bytes: ByteBuffer
    var number: UInt64
    var sections: [PlacedSection]
}

/// Builds a group of the frames of a batch, as far as there is room.
struct LogGroupBuilder {
    let identity: UInt64
    let number: UInt64
    let cipher: LogCipher
    let byteCountMax: Int
    let sectionByteCountMax: Int

    private var table = ByteBuffer()
    private var entryCount = 0
    private var body = ByteBuffer()
    private var sections: [PlacedSection] = []

    init(identity: UInt64, number: UInt64, cipher: LogCipher, byteCountMax: Int, sectionByteCountMax: Int) {
        (self.identity, self.number, self.cipher) = (identity, number, cipher)
        (self.byteCountMax, self.sectionByteCountMax) = (byteCountMax, sectionByteCountMax)
    }

    /// The bytes for another entry and its section, without what sealing adds to it.
    private func room(for channel: ExactText) -> Int {
        byteCountMax - LogFormat.groupHeaderByteCount - table.readableBytes - cipher.overhead - body.readableBytes
            - LogEntry.byteCount - channel.string.utf8.count
    }

    /// Adds releases, up to half of the room. The others are left out.
    mutating func add(_ releases: [(channel: ExactText, release: LogRelease)]) {
        for (channel, release) in releases where room(for: channel) > byteCountMax / 2 {
            LogEntry.release(channel: channel, release).encode(into: &table)
            entryCount += 1
        }
    }

    /// Adds frames of the batch in its order, and moves the batch on.
    ///
    /// - Throws: 10018 if a section cannot be sealed.
    mutating func add(_ batch: inout LogBatch) throws(ApusError) {
        while batch.hasFrames {
            let channel = batch.channels[batch.nextChannel]
            guard channel.next < channel.frames.count else {
                batch.nextChannel += 1
                continue
            }
            let end = try addSection(channel)
            guard end > channel.next else { return }
            batch.channels[batch.nextChannel].next = end
        }
    }

    /// Adds a section of the channel's next frames: of one epoch, with growing positions.
    ///
    /// - Returns: the first frame that is not in it.
    private mutating func addSection(_ channel: LogBatch.Channel) throws(ApusError) -> Int {
        let room = room(for: channel.name) - cipher.overhead
        var plain = ByteBuffer()
        var end = channel.next
        while end < channel.frames.count {
            let frame = channel.frames[end]
            let byteCount = LogFormat.frameHeaderByteCount + frame.content.readableBytes
            guard plain.readableBytes + byteCount <= room else { break }
            if end > channel.next {
                let before = channel.frames[end - 1].position
                guard plain.readableBytes + byteCount <= sectionByteCountMax, before.epoch == frame.position.epoch,
                    before.sequence < frame.position.sequence
                else { break }
            }
            frame.encode(into: &plain)
            end += 1
        }
        guard end > channel.next else { return end }
        let (first, last) = (channel.frames[channel.next], channel.frames[end - 1])
        let part = UInt32(entryCount)
        let sealed = try cipher.seal(plain, at: LogPlace(identity: identity, group: number, part: part))
        let section = LogSection(
            epoch: first.position.epoch, first: first.position.sequence, last: last.position.sequence,
            frameCount: end - channel.next, receivedMicroseconds: first.receivedMicroseconds,
            byteCount: sealed.readableBytes, checksum: LogFormat.checksum(sealed))
        LogEntry.frames(channel: channel.name, section).encode(into: &table)
        sections.append(
            PlacedSection(channel: channel.name, section: section, offset: body.readableBytes, part: part))
        entryCount += 1
        body.writeImmutableBuffer(sealed)
        return end
    }

    /// The group; nil if nothing is in it.
    ///
    /// - Throws: 10018 if the table cannot be sealed.
    func group(durable: UInt64) throws(ApusError) -> LogGroup? {
        guard entryCount > 0 else { return nil }
        let place = LogPlace(identity: identity, group: number, part: LogPlace.table)
        let table = try cipher.seal(self.table, at: place)
        let start = LogFormat.groupHeaderByteCount + table.readableBytes
        let byteCount = LogFormat.padded(start + body.readableBytes)
        var bytes = LogGroupHeader.bytes(
            identity: identity, number: number, durable: durable, byteCount: byteCount, table: table,
            entryCount: entryCount)
        bytes.writeImmutableBuffer(body)
        bytes.writeRepeatingByte(0, count: byteCount - bytes.readableBytes)
        let sections = sections.map { section in
            var section = section
            section.offset += start
            return section
        }
        return LogGroup(bytes: bytes, number: number, sections: sections)
    }
}
