import Glibc

/// Wakes one waiting thread. It is a semaphore, so a wake before the wait is not lost.
///
/// Concurrency model: ``wake()`` from any thread, ``wait()`` from one.
final class Signal: @unchecked Sendable {  // SAFETY: the pointer never changes; POSIX semaphores are thread-safe.
    private let semaphore: UnsafeMutablePointer<sem_t>

    init() {
        semaphore = .allocate(capacity: 1)
        sem_init(semaphore, 0, 0)
    }

    func wake() { sem_post(semaphore) }

    /// Returns once there is a wake that no earlier wait consumed.
    func wait() {
        while sem_wait(semaphore) != 0, errno == EINTR {}
    }

    deinit {
        sem_destroy(semaphore)
        semaphore.deallocate()
    }
}

/// Writes every byte with `write(2)`.
///
/// - Returns: nil, or the errno that stopped it.
func writeAll(_ file: Int32, _ bytes: [UInt8]) -> Int32? {
    var offset = 0
    while offset < bytes.count {
        // SAFETY: the pointer is used only inside the closure.
        let written = bytes.withUnsafeBytes { write(file, $0.baseAddress?.advanced(by: offset), $0.count - offset) }
        if written < 0 {
            if errno == EINTR { continue }
            return errno
        }
        offset += written
    }
    return nil
}
