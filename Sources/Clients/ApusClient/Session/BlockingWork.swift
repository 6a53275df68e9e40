package import ApusCore
import NIOPosix

/// Work that blocks, such as on a disk.
package enum BlockingWork {
    /// Runs it on a thread for such work, and not on one of those that all tasks share. It is run and awaited also if
    /// the task is cancelled: what is to be on the disk at the end of a task is written.
    ///
    /// - Throws: as the work; 10006 if the process ends.
    package static func run<T: Sendable>(
        _ work: @escaping @Sendable () throws(ApusError) -> T
    ) async throws(ApusError) -> T {
        let result: Result<T, ApusError> = await withCheckedContinuation { continuation in
            NIOThreadPool.singleton.submit { state in
                guard case .active = state else {
                    return continuation.resume(returning: .failure(ApusError(.cancelled)))
                }
                do throws(ApusError) {
                    continuation.resume(returning: .success(try work()))
                } catch {
                    continuation.resume(returning: .failure(error))
                }
            }
        }
        return try result.get()
    }
}
