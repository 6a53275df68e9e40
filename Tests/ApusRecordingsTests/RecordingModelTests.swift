import ApusCore
import ApusMedia
import ApusObjectStore
import ApusRecordingLog
import ApusRecordings
import ApusStorage
import ApusTestKit
import NIOCore
import Testing

/// Three nodes that record one channel into one object store and one store of records, with what can happen to them.
///
/// The logs, the sealer, the index and the object store are the real ones. Of the channel there is what it promises:
/// the owner and the standby get each frame, and a new standby gets the last ones too.
private struct RecordingModel {
    private static let channel = RecordedChannel(
        account: AccountID(unchecked: "home"), device: DeviceID(unchecked: "cam"), source: 0)
    private static let nodeCount = 3
    /// The frames that a new standby gets: four groups of pictures.
    private static let ringCount = 600

    private struct Node {
        let directory: String
        var log: RecordingLog?
        /// The next frame that it has not got, as an index of the stream's.
        var next = 0
    }

    var random: SeededRandom
    private var stream: RecordedStream
    private var nodes: [Node] = []
    private var owner = 0
    private var standby: Int? = 1
    private let folder = Folder()
    private let records = MemoryRecordStore()
    private let objects: FailingObjects
    private(set) var events: [String] = []

    init(seed: UInt64) async throws {
        random = SeededRandom(seed: seed)
        stream = RecordedStream(seed: seed &+ 1)
        stream.faults = .init(epochs: true, configurations: seed % 3 == 0, pauses: true)
        objects = FailingObjects(try await DirectoryObjectStore(path: folder.path + "/objects"), seed: seed)
        for index in 0..<Self.nodeCount {
            nodes.append(Node(directory: folder.path + "/log\(index)"))
            nodes[index].log = try Self.open(nodes[index].directory)
        }
    }

    private static func open(_ directory: String) throws -> RecordingLog {
        var limits = RecordingLogLimits()
        (limits.fileByteCount, limits.fileCountMin, limits.fileCountMax) = (4 << 20, 1, 16)
        (limits.groupByteCountMax, limits.frameByteCountMax) = (1 << 20, 512 << 10)
        return try RecordingLog(directory: directory, limits: limits)
    }

    private func sealer(_ log: RecordingLog) -> RecordingSealer {
        RecordingSealer(log: log, objects: objects, index: RecordingIndex(records), limits: RecordingCutter.Limits())
    }

    // MARK: - Steps

    mutating func step() async throws {
        switch Int.random(in: 0..<20, using: &random) {
        case 0..<8: publish()
        case 8..<11: try await write(Int.random(in: 0..<Self.nodeCount, using: &random))
        case 11..<14: try await seal(owner, end: [nil, nil, .continues, .stopped].randomElement(using: &random)!)
        case 14: try await kill()
        case 15: try await restart()
        case 16:
            // A node that does not know yet that it is not the owner, or frames that nobody sealed.
            try await seal(Int.random(in: 0..<Self.nodeCount, using: &random), end: .stopped)
        case 17: try await release(Int.random(in: 0..<Self.nodeCount, using: &random))
        case 18: objects.setFailing(Bool.random(using: &random))
        default: handOver()
        }
    }

    private mutating func publish() {
        stream.add(groups: 1)
        deliver(to: owner)
        if let standby { deliver(to: standby) }
    }

    private mutating func deliver(to index: Int) {
        guard let log = nodes[index].log else { return }
        let frames = stream.frames[nodes[index].next...].map { frame in
            var content = ByteBuffer()
            frame.frame.encode(into: &content)
            return LoggedFrame(
                position: frame.frame.header.position, receivedMicroseconds: frame.receivedMicroseconds,
                content: RecordedFrame.encode(content, configurations: frame.configurations))
        }
        nodes[index].next = stream.frames.count
        #expect(log.append("\(Self.channel)", frames) == 0)
    }

    private mutating func write(_ index: Int) async throws {
        guard let log = nodes[index].log else { return }
        try await log.write()
    }

    /// The owner or the standby dies, with what it has not written. Only while the other one has everything.
    private mutating func kill() async throws {
        guard let standby, nodes[owner].log != nil, nodes[standby].log != nil else { return }
        let victim = Bool.random(using: &random) ? owner : standby
        events.append("kill \(victim)")
        await nodes[victim].log?.close()
        nodes[victim].log = nil
        if victim == owner { owner = standby }
        self.standby = nil
        try await name()
    }

    /// Names a standby, which gets what the channel holds.
    private mutating func name() async throws {
        guard standby == nil,
            let index = nodes.indices.filter({ $0 != owner && nodes[$0].log != nil }).randomElement(using: &random)
        else { return }
        // The owner has written what is no longer in the ring.
        try await write(owner)
        standby = index
        nodes[index].next = ringStart
        deliver(to: index)
    }

    /// A key frame with its configurations, at least four groups before the end.
    private var ringStart: Int {
        let start = max(0, stream.frames.count - Self.ringCount)
        return stream.frames[start...].firstIndex { !$0.configurations.isEmpty } ?? start
    }

    private mutating func restart() async throws {
        for index in nodes.indices where nodes[index].log == nil {
            events.append("restart \(index)")
            nodes[index].log = try Self.open(nodes[index].directory)
            // What came meanwhile, it never gets.
            nodes[index].next = stream.frames.count
        }
        try await name()
    }

    private mutating func handOver() {
        guard let standby, nodes[standby].log != nil else { return }
        (owner, self.standby) = (standby, owner)
        events.append("owner \(owner)")
    }

    private mutating func seal(_ index: Int, end: SegmentEnd?) async throws {
        guard let log = nodes[index].log else { return }
        do throws(ApusError) {
            let outcome = try await sealer(log).seal(Self.channel, end: end)
            events.append("seal \(index): \(outcome.segmentCount) to \(outcome.sealed.map { "\($0)" } ?? "-")")
        } catch {
            guard error.code == .storageFailed else { throw error }
            events.append("seal \(index) failed")
        }
    }

    private mutating func release(_ index: Int) async throws {
        guard let log = nodes[index].log, index != owner else { return }
        var outcome = RecordingSealer.Outcome()
        do throws(ApusError) {
            try await sealer(log).release(Self.channel, &outcome)
        } catch {
            guard error.code == .storageFailed else { throw error }
        }
    }

    // MARK: - The end

    /// Everything is well again, and everything is sealed.
    mutating func settle() async throws {
        objects.setFailing(false)
        try await restart()
        deliver(to: owner)
        for index in nodes.indices { try await write(index) }
        for _ in 0..<2 {
            try await seal(owner, end: .stopped)
            for index in nodes.indices { try await seal(index, end: .stopped) }
        }
        for index in nodes.indices { try await write(index) }
    }

    private static func footer(of object: [UInt8]) throws -> SegmentFooter {
        let count = try #require(
            SegmentFooter.byteCount(trailer: Array(object.suffix(SegmentFooter.trailerByteCount))))
        return try SegmentFooter(decoding: Array(object.suffix(count)), objectByteCount: object.count)
    }

    func check() async throws {
        let index = RecordingIndex(records)
        let head = try #require(try await index.head(of: Self.channel)?.body)
        var payloads: [[UInt8]] = []
        var (bytes, count) = (UInt64(0), UInt64(0))
        let range = RecordingIndex.hour(of: head.firstUs)...RecordingIndex.hour(of: head.endUs)
        var from = range.lowerBound
        while from <= range.upperBound {
            let hours = try await index.hours(of: Self.channel, from...range.upperBound)
            for hour in hours {
                for segment in hour.body.segments {
                    let name = try RecordingIndex.objectName(
                        Self.channel, hour: hour.body.hour, object: segment.object)
                    let object = try #require(try await objects.get(name, range: nil), "\(name) is missing")
                    let footer = try Self.footer(of: object.bytes)
                    for frame in footer.frames { payloads.append(Array(object.bytes[frame.range])) }
                    (bytes, count) = (bytes + segment.bytes, count + 1)
                    #expect(Int(segment.bytes) == object.bytes.count)
                }
            }
            from = (hours.last?.body.hour ?? range.upperBound) + 1
        }
        #expect((head.bytes, head.segments) == (bytes, count))
        let expected = stream.media.map { Array($0.frame.payload.readableBytesView) }
        #expect(payloads.count == expected.count, "\(events.suffix(40))")
        #expect(Multiset(payloads) == Multiset(expected), "\(events.suffix(40))")
        for node in nodes {
            let left = node.log?.channels ?? []
            #expect(left.isEmpty, "\(left) is still in a log, the head is at \(head.position)")
            await node.log?.close()
        }
    }
}

private struct Multiset: Equatable {
    private var counts: [[UInt8]: Int] = [:]
    init(_ all: [[UInt8]]) { for one in all { counts[one, default: 0] += 1 } }
}

@Suite("Recordings: nodes that die while they record (issue 45)")
struct RecordingModelTests {
    @Test("Every frame is in the recording once, whichever nodes die, seal and move", arguments: 0..<40)
    func model(seed: UInt64) async throws {
        var model = try await RecordingModel(seed: seed)
        for _ in 0..<120 { try await model.step() }
        try await model.settle()
        try await model.check()
    }
}
