import ApusCore
import ApusMedia
import DequeModule

/// Where a section of a channel is. 64 bytes.
struct LogExtent: Sendable, Hashable {
    var slot: UInt32
    var part: UInt32
    var group: UInt64
    /// In the file.
    var offset: UInt32
    var byteCount: UInt32
    var checksum: UInt32
    var epoch: UInt32
    /// The first position that is not released.
    var first: UInt64
    var last: UInt64
    var receivedMicroseconds: Int64
    var frameCount: UInt32
    /// Reads that failed.
    var failureCount: UInt16 = 0
    /// It cannot be read.
    var isDamaged = false
    /// Some of its frames are released.
    var isCut = false

    var firstPosition: FramePosition { FramePosition(epoch: epoch, sequence: first) }
    var lastPosition: FramePosition { FramePosition(epoch: epoch, sequence: last) }

    func isAt(_ other: Self) -> Bool { (slot, group, part) == (other.slot, other.group, other.part) }
}

/// What is in the files of a log, and which file is written, free or in use. A pure value.
///
/// A file is free when none of its sections is left: every frame in it is released. Releases are remembered in the
/// files that are written later, so a restart forgets only those that were not written.
struct LogIndex {
    /// A file.
    struct Slot {
        enum Use: Hashable {
            /// All that it has is released.
            case free
            /// Groups are written at the offset.
            case current(offset: Int)
            /// It has frames and no more are added.
            case closed
            /// Its groups are being read.
            case opening
            /// Its key is unknown or its header damaged.
            case unreadable
        }

        var use: Use
        var generation: UInt64
        var byteCount: Int
        /// Sections that are not released.
        var sectionCount = 0
        /// The first group, until the file is overwritten: a restart finds the groups of a free file again.
        var firstGroup: UInt64?
        /// When a write of it last failed, in the order of failures; 0: never.
        var failure = 0
    }

    struct Channel {
        /// In the order of their first positions.
        var extents: Deque<LogExtent> = []
        var releases: [LogRelease] = []
        var byteCount = 0
        /// The newest durable position since the log was opened or all was released.
        var newest: FramePosition?
    }

    /// The most releases of a channel. More than one is left only where positions have begun again below.
    static let releaseCountMax = 8

    private(set) var slots: [Int: Slot] = [:]
    private(set) var channels: [ExactText: Channel] = [:]
    private(set) var sectionCount = 0
    private(set) var usedByteCount = 0
    /// The last number that a group was given.
    private(set) var lastGroup: UInt64 = 0
    private var lastGeneration: UInt64 = 0
    private var failures = 0

    // MARK: Files

    mutating func addSlot(_ number: Int, _ slot: Slot) {
        slots[number] = slot
        lastGeneration = max(lastGeneration, slot.generation)
    }

    mutating func removeSlot(_ number: Int) { slots[number] = nil }

    var current: (slot: Int, offset: Int)? {
        for (number, slot) in slots {
            if case .current(let offset) = slot.use { return (number, offset) }
        }
        return nil
    }

    /// The free file to write next: of those that failed, the one that failed first.
    var freeSlot: Int? {
        slots.filter { $0.value.use == .free }.min {
            ($0.value.failure, $0.value.generation, $0.key) < ($1.value.failure, $1.value.generation, $1.key)
        }?.key
    }

    mutating func newGeneration() -> UInt64 {
        lastGeneration += 1
        return lastGeneration
    }

    /// The number of a group that is written next. It may be found later, also if the write fails.
    mutating func newGroup(in slot: Int) -> UInt64 {
        found(group: lastGroup + 1, in: slot)
        return lastGroup
    }

    /// A group of this number exists.
    mutating func found(group: UInt64, in slot: Int) {
        lastGroup = max(lastGroup, group)
        let first = slots[slot]?.firstGroup
        if first.map({ $0 > group }) ?? true { slots[slot]?.firstGroup = group }
    }

    /// From now on the file is the one that is written. What it had is overwritten.
    mutating func overwrite(_ slot: Int, generation: UInt64, at offset: Int) {
        slots[slot]?.firstGroup = nil
        goOn(slot, generation: generation, at: offset)
    }

    /// From now on the file is the one that is written, behind what it has.
    mutating func goOn(_ slot: Int, generation: UInt64, at offset: Int) {
        if let current { close(current.slot) }
        slots[slot]?.use = .current(offset: offset)
        slots[slot]?.generation = generation
    }

    mutating func move(_ slot: Int, to offset: Int) { slots[slot]?.use = .current(offset: offset) }

    mutating func close(_ slot: Int) {
        guard case .current = slots[slot]?.use else { return }
        slots[slot]?.use = .closed
        freeIfEmpty(slot)
    }

    /// A write of the file failed: it is not written any more.
    mutating func fail(_ slot: Int) {
        failures += 1
        slots[slot]?.failure = failures
        close(slot)
    }

    /// The groups of the file were read.
    mutating func opened(_ slot: Int) {
        guard slots[slot]?.use == .opening else { return }
        slots[slot]?.use = .closed
        freeIfEmpty(slot)
    }

    private mutating func freeIfEmpty(_ slot: Int) {
        guard slots[slot]?.use == .closed, slots[slot]?.sectionCount == 0 else { return }
        slots[slot]?.use = .free
    }

    // MARK: Frames

    /// Adds a channel, if it is not there.
    mutating func add(_ name: ExactText) { channels[name, default: Channel()].byteCount += 0 }

    /// Adds a durable section. A release of its group's time or later applies to it.
    mutating func add(_ extent: LogExtent, of name: ExactText) {
        var extent = extent
        // Removed, so that its sections are changed in place.
        var channel = channels.removeValue(forKey: name) ?? Channel()
        defer { channels[name] = channel }
        channel.newest = max(channel.newest ?? extent.lastPosition, extent.lastPosition)
        for release in channel.releases where extent.group <= release.number {
            guard Self.cut(&extent, release) else { return }
        }
        var index = channel.extents.endIndex
        while index > 0, Self.precedes(extent, channel.extents[index - 1]) { index -= 1 }
        channel.extents.insert(extent, at: index)
        count(extent, 1, in: &channel)
    }

    private static func precedes(_ left: LogExtent, _ right: LogExtent) -> Bool {
        (left.epoch, left.first, left.group, left.part) < (right.epoch, right.first, right.group, right.part)
    }

    /// True if the other section has only frames that this one has too.
    private static func covers(_ extent: LogExtent, _ other: LogExtent) -> Bool {
        let isDense = extent.last - extent.first + 1 == UInt64(extent.frameCount)
        return isDense && !extent.isCut && !extent.isDamaged && extent.epoch == other.epoch
            && extent.first <= other.first && other.last <= extent.last
    }

    private mutating func count(_ extent: LogExtent, _ sign: Int, in channel: inout Channel) {
        channel.byteCount += sign * Int(extent.byteCount)
        usedByteCount += sign * Int(extent.byteCount)
        sectionCount += sign
        slots[Int(extent.slot)]?.sectionCount += sign
        freeIfEmpty(Int(extent.slot))
    }

    /// - Returns: false if nothing is left of the section.
    private static func cut(_ extent: inout LogExtent, _ release: LogRelease) -> Bool {
        guard extent.firstPosition <= release.through else { return true }
        guard extent.lastPosition > release.through else { return false }
        // They are of one epoch, as the release is between them.
        extent.isCut = true
        extent.first = release.through.sequence + 1
        return true
    }

    /// Releases frames of a channel, in groups up to the release's number.
    ///
    /// - Returns: false if an earlier release covers it.
    mutating func apply(_ release: LogRelease, to name: ExactText) -> Bool {
        guard var channel = channels.removeValue(forKey: name) else { return false }
        defer { channels[name] = channel }
        guard !channel.releases.contains(where: { $0.covers(release) }) else { return false }
        channel.releases.removeAll { release.covers($0) }
        if channel.releases.count == Self.releaseCountMax { channel.releases.removeFirst() }
        channel.releases.append(release)
        var kept: Deque<LogExtent> = []
        while let next = channel.extents.first, next.firstPosition <= release.through {
            var extent = channel.extents.removeFirst()
            if extent.group > release.number || Self.cut(&extent, release) {
                kept.append(extent)
            } else {
                count(next, -1, in: &channel)
            }
        }
        for extent in kept.sorted(by: { Self.precedes($1, $0) }) { channel.extents.prepend(extent) }
        return true
    }

    /// Forgets the newest position of a channel, as far as it has no frames.
    mutating func forget(_ name: ExactText) {
        let newest = channels[name]?.extents.lazy.map(\.lastPosition).max()
        channels[name]?.newest = newest
    }

    /// The releases of all channels that still matter: a file has a group of their time or an earlier one.
    mutating func releases() -> [(channel: ExactText, release: LogRelease)] {
        let oldest = slots.values.compactMap(\.firstGroup).min() ?? .max
        var all: [(channel: ExactText, release: LogRelease)] = []
        for name in channels.keys.sorted() {
            channels[name]?.releases.removeAll { $0.number < oldest }
            for release in channels[name]?.releases ?? [] { all.append((name, release)) }
        }
        return all
    }

    /// Makes room for another channel: forgets one without frames, if possible without releases that matter.
    ///
    /// - Returns: false if there is none.
    mutating func makeRoom() -> Bool {
        _ = releases()
        let idle = channels.filter { $0.value.extents.isEmpty }
        guard let name = (idle.first { $0.value.releases.isEmpty } ?? idle.first)?.key else { return false }
        channels[name] = nil
        return true
    }

    // MARK: Reading

    /// The sections to read for the next frames after a position, which they have up to `end`. Those whose frames
    /// others have too are left out, as long as the others can be read.
    func plan(_ name: ExactText, after: FramePosition?) -> (extents: [LogExtent], end: FramePosition)? {
        guard let extents = channels[name]?.extents else { return nil }
        let rest = extents.lazy.filter { extent in
            !extent.isDamaged && (after.map { extent.lastPosition > $0 } ?? true)
        }
        guard let first = rest.first else { return nil }
        var planned: [LogExtent] = []
        for extent in rest.prefix(while: { $0.firstPosition <= first.lastPosition }) {
            let isCovered = planned.contains { Self.covers($0, extent) }
            if !isCovered { planned.append(extent) }
        }
        return (planned, first.lastPosition)
    }

    /// A read of a section failed.
    ///
    /// - Parameter failureCountMax: so many failures damage it.
    /// - Returns: nil if it was released in the meantime, or true if it is damaged now.
    mutating func failedToRead(_ extent: LogExtent, of name: ExactText, failureCountMax: UInt16) -> Bool? {
        guard let index = channels[name]?.extents.firstIndex(where: { $0.isAt(extent) }) else { return nil }
        channels[name]?.extents[index].failureCount += 1
        let isDamaged = (channels[name]?.extents[index].failureCount ?? 0) >= failureCountMax
        channels[name]?.extents[index].isDamaged = isDamaged
        return isDamaged
    }

    /// What there is of each channel that has frames.
    var logged: [LoggedChannel] {
        channels.compactMap { name, channel in
            guard let first = channel.extents.first else { return nil }
            let last = channel.extents.lazy.map(\.lastPosition).max() ?? first.lastPosition
            return LoggedChannel(
                name: name.string, first: first.firstPosition, last: last, byteCount: channel.byteCount,
                oldestMicroseconds: first.receivedMicroseconds)
        }
    }
}
