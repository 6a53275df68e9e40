import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Descriptors that are kept open for nothing, so that one can be had when the process or the system has none left.
///
/// At the limit `accept` fails and the connection stays in the listener's queue, where its client waits for nothing.
/// With one of these given up, it can be taken and closed: its client hears at once that there is no room.
///
/// Concurrency: any thread; the descriptors sit behind a `Mutex`.
package final class ReservedDescriptors: Sendable {
    /// Connections that one ``refuse(waitingAt:countMax:)`` refuses: as many as a listener's queue holds.
    package static let refusedAtOnceMax = 4096

    private let countMax: Int
    private let open = Mutex<[CInt]>([])

    /// Opens the descriptors, as far as there are any.
    ///
    /// - Parameter count: more than one, since another thread may take the one that is given up.
    package init(count: Int = 4) {
        countMax = count
        refill()
    }

    deinit {
        for descriptor in open.withLock({ $0 }) { _ = close(descriptor) }
    }

    /// Gives one up, so that the next call that needs a descriptor gets one; false if none is left.
    package func release() -> Bool {
        guard let descriptor = open.withLock({ $0.popLast() }) else { return false }
        _ = close(descriptor)
        return true
    }

    /// Opens those again that were given up; false if the system gives none.
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

    /// Takes the connections that wait at a listener that does not block, and closes them.
    ///
    /// - Returns: how many; 0 if no descriptor was left for it.
    package func refuse(waitingAt listener: CInt, countMax: Int = refusedAtOnceMax) -> Int {
        refill()
        guard release() else { return 0 }
        defer { refill() }
        var count = 0
        while count < countMax {
            let connection = accept(listener, nil, nil)
            guard connection >= 0 else {
                // One that was given up by its client meanwhile is no reason to stop; another thread may have taken
                // the descriptor that was given up here.
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
