package import ApusCore
import NIOPosix

/// Work that blocks, such as on a disk.
package enum BlockingWork {
    /// Runs it on a thread for such work, and not on one of those that all tasks share.
    ///
    /// - Throws: as the work; 10006 if the process ends.
    package static func run<T: Sendable>(
        _ work: @escaping @Sendable () throws(ApusError) -> T
    ) async throws(ApusError) -> T {
        do {
            return try await NIOThreadPool.singleton.runIfActive { try work() }
        } catch {
            throw error as? ApusError ?? ApusError(.cancelled)
        }
    }
}
