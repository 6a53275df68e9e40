import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Descriptors that are kept open in reserve, for the moment when the process or the system has none left.
///
/// At the limit `accept` fails, and the connection waits in the listener's queue. With one reserved descriptor released
/// it can be accepted and closed, so its client is refused at once.
///
/// Concurrency: any thread; a `Mutex` guards the descriptors.
package final class ReservedDescriptors: Sendable {
    /// The most connections that one ``refuse(waitingAt:countMax:)`` refuses: the length of a listener's queue.
    package static let refusedAtOnceMax = 4096

    private let countMax: Int
    private let open = Mutex<[CInt]>([])

    /// Opens the descriptors, as far as there are any.
    ///
    /// - Parameter count: more than one, since another thread may take a released one.
    package init(count: Int = 4) {
        countMax = count
        refill()
    }

    deinit {
        for descriptor in open.withLock({ $0 }) { _ = close(descriptor) }
    }

    /// Releases one descriptor, so that the next call that needs one succeeds. Returns false if none is left.
    package func release() -> Bool {
        guard let descriptor = open.withLock({ $0.popLast() }) else { return false }
        _ = close(descriptor)
        return true
    }

    /// Opens released descriptors again. Returns false if the system has none.
    @discardableResult
    package func refill() -> Bool {
        open.withLock { open in
            while open.count < countMax {
                let descriptor = Self.spare()
                guard descriptor >= 0 else { return false }
                open.append(descriptor)
            }
            return true
        }
    }

    /// Accepts and closes the connections that wait at a non-blocking listener.
    ///
    /// - Returns: their number; 0 if no reserved descriptor was left.
    package func refuse(waitingAt listener: CInt, countMax: Int = refusedAtOnceMax) -> Int {
        refill()
        guard release() else { return 0 }
        defer { refill() }
        var count = 0
        while count < countMax {
            let connection = accept(listener, nil, nil)
            guard connection >= 0 else {
                // A connection that its client aborted is no reason to stop. Another thread may have taken the
                // descriptor that was released here.
                if errno == ECONNABORTED || errno == EINTR { continue }
                if errno == EMFILE || errno == ENFILE, release() { continue }
                break
            }
            _ = close(connection)
            count += 1
        }
        return count
    }

    private static func spare() -> CInt { Self.openFile("/dev/null") }

    private static func openFile(_ path: String) -> CInt {
        #if canImport(Glibc)
        Glibc.open(path, O_RDONLY | O_CLOEXEC)
        #else
        Musl.open(path, O_RDONLY | O_CLOEXEC)
        #endif
    }
}
