import ApusCore

/// Work that begins at fixed times, whether or not earlier work has ended.
enum OpenLoop {
    /// - Parameter body: receives the number of the piece, from 0, and the time at which it was due.
    static func run<Outcome: Sendable>(
        rate: Double, seconds: Double, _ body: @escaping @Sendable (Int, MonotonicTime) async -> Outcome
    ) async -> [Outcome] {
        let start = MonotonicTime.now()
        return await withTaskGroup(of: Outcome.self) { group in
            for number in 0..<Int(rate * seconds) {
                let due = start + .nanoseconds(Int64(Double(number) * 1e9 / rate))
                let now = MonotonicTime.now()
                if due > now { try? await Task.sleep(for: due - now) }
                group.addTask { await body(number, due) }
            }
            return await group.reduce(into: [Outcome]()) { $0.append($1) }
        }
    }
}
