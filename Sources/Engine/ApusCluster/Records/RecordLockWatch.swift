import ApusCore
package import ApusStorage
package import Logging
import ServiceLifecycle
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Kills a process of this machine that was declared dead while it holds the lock of the records.
/// A stopped process (SIGSTOP, a debugger, a frozen container) keeps its locks. Its node is soon declared dead and its
/// shards move, but no node could write a record until the process resumes. The kernel names the holder of the lock. It
/// is killed if the lock's mark is that of a dead incarnation (``RecordLockStateMachine``), which may not do any work
/// anyway (docs/decisions/3).
/// Concurrency model: the map's observer and the one task of ``run()`` share the machine behind a `Mutex`.
package final class RecordLockWatch: Service {
    /// The interval of checks: longer than a commit, and much shorter than `records.lock_timeout`.
    private static let period = Duration.milliseconds(100)

    private let records: any RecordStore
    private let log: Logger
    private let machine = Mutex(RecordLockStateMachine())

    package init(records: any RecordStore, view: ClusterView, log: Logger) {
        (self.records, self.log) = (records, log)
        let local = view.local
        view.observe { [weak self] old, new in
            for node in Self.deaths(from: old, to: new) where node != local {
                self?.machine.withLock { $0.died("\(node)", mark: RecordWriter.mark(of: node)) }
            }
        }
    }

    /// Incarnations that were declared dead or replaced. One that left by itself may still finish its writes.
    private static func deaths(from old: ClusterMap, to new: ClusterMap) -> [NodeID] {
        old.members.filter(\.state.isAlive).map(\.id).filter { node in
            guard let member = new.member(named: node.name), member.id == node else { return true }
            return member.state == .dead
        }
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown { [self] in
            while (try? await Task.sleep(for: Self.period)) != nil {
                if machine.withLock({ $0.isWatching }) { await look() }
            }
        }
    }

    private func look() async {
        let holder = await records.lockHolder()
        let dead = machine.withLock { machine in
            machine.looked(
                holder.map { RecordLockStateMachine.Holder(process: $0.process, mark: $0.mark, turn: $0.turn) })
        }
        guard let dead else { return }
        kill(dead.process, SIGKILL)
        log.warning(
            "A dead process that blocked writes of records was killed",
            metadata: [LogKey.peer: "\(dead.node)", LogKey.process: "\(dead.process)"])
    }
}
