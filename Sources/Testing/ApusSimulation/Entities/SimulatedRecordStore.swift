import ApusCluster
import ApusCore
import ApusStorage

/// The record store that all nodes share, as its clients see it: slow, down, stopped, cut off from a node, and with
/// uncertain outcomes.
///
/// A request that is reported as failed may have been carried out, or may be later, like at a server that completes
/// requests after their connection broke.
final class SimulatedRecordStore {
    /// The latency while the store is slow, in milliseconds.
    static let slowLatency = 50...800

    private unowned let simulation: ClusterSimulation
    private let failureRate: Double
    var tables = MemoryRecordTables()
    var slowUntil = MonotonicTime.zero
    var downUntil = MonotonicTime.zero
    /// Accepts requests and answers none of them until this time.
    var stoppedUntil = MonotonicTime.zero
    /// By name, the time until which a node does not reach it.
    var cutUntil: [MonotonicTime]
    private(set) var uncertainCount = 0
    /// After the end of the faults: the time at which every request that was slow, or waited for a stopped store, has
    /// been answered.
    private(set) var restsAt = MonotonicTime.zero

    init(simulation: ClusterSimulation, failureRate: Double) {
        (self.simulation, self.failureRate) = (simulation, failureRate)
        cutUntil = Array(repeating: .zero, count: simulation.names.count)
    }

    func heal() {
        // A slow request may be in progress, or one that waits for the end of a stop.
        restsAt = max(min(slowUntil, simulation.now), stoppedUntil) + .milliseconds(Self.slowLatency.upperBound)
        (slowUntil, downUntil, stoppedUntil) = (.zero, .zero, .zero)
        for name in cutUntil.indices { cutUntil[name] = .zero }
    }

    /// Runs a request on the tables.
    ///
    /// - Parameter completion: called once at the process, unless that ends; nil if the outcome is unknown.
    func request<Answer>(
        by process: SimulatedProcess, _ body: @escaping (inout MemoryRecordTables) -> Answer,
        then completion: @escaping (Answer?) -> Void
    ) {
        let now = simulation.now
        if isUnreachable(from: process) {
            return answer(nil, to: process, after: simulation.span(5...60), completion)
        }
        let latency = now < slowUntil ? simulation.span(Self.slowLatency) : simulation.span(1...6)
        if !simulation.isHealed, simulation.chance(failureRate) {
            uncertainCount += 1
            answer(nil, to: process, after: latency, completion)
            guard simulation.chance(0.5) else { return }
            let delay = simulation.chance(0.2) ? simulation.span(0...1200) : simulation.span(0...40)
            return later(after: delay) { _ = body(&self.tables) }
        }
        later(after: latency / 2) { self.make(body, by: process, completion, latency / 2) }
    }

    private func make<Answer>(
        _ body: @escaping (inout MemoryRecordTables) -> Answer, by process: SimulatedProcess,
        _ completion: @escaping (Answer?) -> Void, _ latency: Duration
    ) {
        guard simulation.now >= stoppedUntil else {
            let wait = stoppedUntil - simulation.now + simulation.span(0...5)
            return later(after: wait) { self.make(body, by: process, completion, latency) }
        }
        let made = body(&tables)
        // The answer is lost if the store is down, or cut off.
        let isLost = isUnreachable(from: process)
        if isLost { uncertainCount += 1 }
        answer(isLost ? nil : made, to: process, after: latency, completion)
    }

    private func isUnreachable(from process: SimulatedProcess) -> Bool {
        simulation.now < downUntil || simulation.now < cutUntil[process.nameIndex]
    }

    private func later(after delay: Duration, _ body: @escaping () -> Void) {
        simulation.later(.work(SimulationWork(kind: 1, run: body)), after: delay)
    }

    private func answer<Answer>(
        _ made: Answer?, to process: SimulatedProcess, after delay: Duration, _ completion: @escaping (Answer?) -> Void
    ) {
        simulation.later(
            .work(SimulationWork(kind: 2) { completion(made) }), process: process.index, after: delay)
    }
}
