import ApusCluster
import ApusCore
import ApusTransport
import ApusWire
import ArgumentParser
import Foundation
import Synchronization

/// The calling side: callers that ask the probe entity, or one sender that tells it a million numbers.
struct BenchTransportClientCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "transport-client", abstract: "Run the node that `transport` measures.", shouldDisplay: false)

    @Option(help: "Read the certificates from this directory.") var dir: String
    @Option(help: "Connect to the serving node at HOST:PORT.") var connect: String
    @Option(help: "Use this number of concurrent callers.") var callers = 1
    @Option(help: "Measure for this number of seconds.") var seconds = 3.0
    @Flag(help: "Run the callers on the shared thread pool, not on the link's event loop.") var pool = false
    @Option(help: "Listen at HOST:PORT, as the standby of the other node's shards.") var listen: String?
    @Flag(help: "Change replicated entities, one per caller.") var replicated = false
    @Flag(help: "Tell numbers from one sender instead, and check their order.") var order = false

    func run() async throws {
        guard let address = HostPort(connect) else { throw ValidationError("\(connect) is not HOST:PORT") }
        let port = listen.flatMap { HostPort($0) }?.port
        let node = BenchNode("a", directory: dir, standby: port == nil ? nil : "a", port: port ?? 0)
        _ = try await node.transport.start()
        let server = NodeID(name: NodeName(unchecked: "b"), incarnation: 1)
        node.transport.setPeers([Peer(id: server, address: address)])
        let ref = node.registry.ref(ProbeEntity.self, EntityAddress(kind: .probe, key: "bench"))
        _ = try await ref.ask(Self.message, timeout: .seconds(10))
        let executor = node.transport.route(to: server.name)?.executor(lane: Int(ref.address.shard.rawValue))
        let result: BenchCallResult
        if order {
            result = try await checkOrder(ref)
        } else if listen == nil {
            result = try await measure(Array(repeating: ref, count: callers), pool ? nil : executor)
        } else if replicated {
            result = try await measure(
                (0..<callers).map {
                    node.registry.ref(
                        EntityCell<ProbeReported>.self, EntityAddress(kind: .replicatedProbe, key: "bench-\($0)"))
                }, pool ? nil : executor)
        } else {
            // One entity per caller, as for replicated entities.
            result = try await measure(
                (0..<callers).map {
                    node.registry.ref(ProbeEntity.self, EntityAddress(kind: .probe, key: "bench-\($0)"))
                }, pool ? nil : executor)
        }
        FileHandle.standardOutput.write(try JSONEncoder().encode(result) + Data("\n".utf8))
        await node.transport.stop()
    }

    /// About 64 bytes: a number, a name and 36 bytes of data.
    private static let message: ProbeEcho = {
        var message = ProbeEcho()
        message.number = 1_234_567_890
        message.name = "camera-0000000001"
        message.data = Data(repeating: 0x5a, count: 36)
        return message
    }()

    /// - Parameter refs: one per caller.
    private func measure<Entity: Actor>(
        _ refs: [EntityRef<Entity>], _ executor: LoopTaskExecutor?
    ) async throws -> BenchCallResult {
        let warming = try await call(refs, executor, for: .milliseconds(500))
        precondition(warming.calls > 0, "no call succeeded")
        return try await call(refs, executor, for: .milliseconds(Int(seconds * 1000)))
    }

    private func call<Entity: Actor>(
        _ refs: [EntityRef<Entity>], _ executor: LoopTaskExecutor?, for span: Duration
    ) async throws -> BenchCallResult {
        let isOver = StopFlag()
        let start = MonotonicTime.now()
        let callers = refs.count
        let parts = try await withThrowingTaskGroup(of: (Int, [UInt64]).self) { group in
            for ref in refs {
                group.addTask(executorPreference: executor) {
                    // Every call of a single caller is timed, and one in 16 of several.
                    try await Self.call(ref, until: isOver, mask: callers == 1 ? 0 : 15)
                }
            }
            group.addTask {
                try await Task.sleep(for: span)
                isOver.set()
                return (0, [])
            }
            var parts: [(Int, [UInt64])] = []
            for try await part in group { parts.append(part) }
            return parts
        }
        let elapsed = (MonotonicTime.now() - start).milliseconds / 1000
        return BenchCallResult(
            calls: parts.reduce(0) { $0 + $1.0 }, seconds: elapsed, nanoseconds: parts.flatMap(\.1).sorted())
    }

    /// Calls until the flag is set. Returns the number of calls, and the nanoseconds of the timed ones.
    private static func call<Entity: Actor>(
        _ ref: EntityRef<Entity>, until isOver: StopFlag, mask: Int
    ) async throws -> (Int, [UInt64]) {
        var calls = 0
        var times: [UInt64] = []
        while !isOver.isSet {
            let isTimed = calls & mask == 0
            let begin = isTimed ? MonotonicTime.now() : .zero
            let reply = try await ref.ask(message)
            guard reply.number == message.number else { throw ApusError(.internalFailure) }
            if isTimed { times.append(UInt64((MonotonicTime.now() - begin).nanoseconds)) }
            calls += 1
        }
        return (calls, times)
    }

    /// The number of tells, and the number of tells between two calls.
    private static let tellCount = UInt64(1_000_000)
    private static let tellBatch = UInt64(65_536)

    private func checkOrder(_ ref: EntityRef<ProbeEntity>) async throws -> BenchCallResult {
        let before = try await ref.ask(ProbeReport())
        let start = MonotonicTime.now()
        for number in 0..<Self.tellCount {
            var message = ProbeCount()
            message.number = number
            while true {
                do throws(ApusError) {
                    try ref.tell(message)
                    break
                } catch {
                    // The limit of queued bytes is reached: wait for room.
                    guard error.code == .overloaded else { throw error }
                    try await Task.sleep(for: .milliseconds(1))
                }
            }
            if number % Self.tellBatch == Self.tellBatch - 1 { _ = try await ref.ask(ProbeReport()) }
        }
        let after = try await ref.ask(ProbeReport())
        let elapsed = (MonotonicTime.now() - start).milliseconds / 1000
        var result = BenchCallResult(
            calls: Int(after.count - before.count), seconds: elapsed, nanoseconds: [])
        // The first number of a run follows the last one of the previous run.
        let isFirst = before.count == 0
        result.outOfOrder = Int(after.outOfOrder - before.outOfOrder) - (isFirst ? 0 : 1)
        return result
    }

    private final class StopFlag: Sendable {
        private let flag = Atomic<Bool>(false)
        var isSet: Bool { flag.load(ordering: .relaxed) }
        func set() { flag.store(true, ordering: .relaxed) }
    }
}

/// The result of one client. The Erlang client prints it too.
struct BenchCallResult: Codable, Sendable {
    var calls: Int
    var callsPerSecond: Double
    var p50Microseconds: Double
    var p99Microseconds: Double
    var outOfOrder: Int?

    enum CodingKeys: String, CodingKey {
        case calls
        case callsPerSecond = "calls_per_s"
        case p50Microseconds = "p50_us"
        case p99Microseconds = "p99_us"
        case outOfOrder = "out_of_order"
    }

    /// - Parameter nanoseconds: the timed calls, sorted.
    init(calls: Int, seconds: Double, nanoseconds: [UInt64]) {
        self.calls = calls
        callsPerSecond = Double(calls) / seconds
        p50Microseconds = Self.quantile(nanoseconds, 0.50)
        p99Microseconds = Self.quantile(nanoseconds, 0.99)
    }

    private static func quantile(_ sorted: [UInt64], _ share: Double) -> Double {
        guard !sorted.isEmpty else { return 0 }
        return Double(sorted[min(sorted.count - 1, Int(Double(sorted.count) * share))]) / 1000
    }
}
