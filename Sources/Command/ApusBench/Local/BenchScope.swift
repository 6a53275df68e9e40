import ApusCore
import ApusLocal
import Foundation
import Synchronization
import UnixSignals

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Everything that a benchmark started on the machine, so that all of it ends with the benchmark, also after an error,
/// SIGINT or SIGTERM.
final class BenchScope: Sendable {
    private struct Undo: Sendable {
        let number: Int
        let body: @Sendable () -> Void
    }

    private struct State {
        var undos: [Undo] = []
        var count = 0
    }

    private let state = Mutex(State())

    /// Registers the clean-up of something that was started.
    /// - Returns: a number for ``end(_:)``.
    @discardableResult
    func onEnd(_ body: @escaping @Sendable () -> Void) -> Int {
        state.withLock { state in
            state.count += 1
            state.undos.append(Undo(number: state.count, body: body))
            return state.count
        }
    }

    /// Runs one clean-up now.
    func end(_ number: Int) {
        let undo = state.withLock { state -> Undo? in
            guard let index = state.undos.firstIndex(where: { $0.number == number }) else { return nil }
            return state.undos.remove(at: index)
        }
        undo?.body()
    }

    private func endAll() {
        while let last = state.withLock({ $0.undos.popLast() }) { last.body() }
    }

    /// Runs a benchmark and then the remaining clean-ups, newest first.
    /// - Throws: the body's errors; 10006 after a signal.
    static func run<Result: Sendable>(
        _ body: @escaping @Sendable (BenchScope) async throws -> Result
    ) async throws -> Result {
        let scope = BenchScope()
        defer { scope.endAll() }
        return try await withThrowingTaskGroup(of: Result.self) { group in
            group.addTask { try await body(scope) }
            group.addTask {
                for await signal in await UnixSignalsSequence(trapping: .sigterm, .sigint) {
                    throw ApusError(.cancelled, "ended by \(signal)")
                }
                throw CancellationError()
            }
            defer { group.cancelAll() }
            guard let result = try await group.next() else { throw CancellationError() }
            return result
        }
    }

    /// Prints progress to standard error, so that an interrupted run has printed its results so far.
    static func say(_ line: String) {
        FileHandle.standardError.write(Data("\(line)\n".utf8))
    }
}

extension BenchScope {
    /// Creates a cluster, runs the body on it, and removes it.
    func withStage<Result>(
        basePort: Int, name: String = "stage", options: FailoverStage.Options = FailoverStage.Options(),
        _ body: (FailoverStage) async throws -> Result
    ) async throws -> Result {
        let directory = "\(options.folder ?? NSTemporaryDirectory())/apus-bench-\(getpid())-\(name)"
        let executable = try options.executable ?? BenchPrograms.apus()
        let undo = onEnd {
            Self.kill(nodesOf: directory)
            if options.isIsolated {
                try? FailoverStage.run(executable, ["cluster", "down", "--purge", "--dir", directory])
            }
            try? FileManager.default.removeItem(atPath: directory)
        }
        defer { end(undo) }
        let stage = try await FailoverStage(
            directory: directory, executable: executable, basePort: basePort, options: options)
        do {
            let result = try await body(stage)
            await stage.down()
            return result
        } catch {
            await stage.down()
            throw error
        }
    }

    /// Kills the remaining processes of a cluster in any state. Each is killed by its id, after a check that it is that
    /// node.
    private static func kill(nodesOf directory: String) {
        guard let local = try? LocalCluster(directory: directory) else { return }
        let processes =
            local.mark.nodes.map { NodeProcess($0.name, in: local.directory) }
            + (local.mark.stores ?? []).compactMap { try? EtcdMember.process($0, in: local.directory, local.mark) }
        for process in processes { process.killAll() }
        // Their ports are free once they are gone.
        let deadline = MonotonicTime.now() + .seconds(10)
        while MonotonicTime.now() < deadline, processes.contains(where: { $0.pid != nil }) { usleep(20_000) }
    }
}
