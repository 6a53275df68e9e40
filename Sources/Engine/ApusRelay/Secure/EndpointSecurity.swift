package import ApusCore
import CApusTLS
import Glibc
import Synchronization

/// The certificate and settings of the TLS and DTLS listeners, shared by all planes: TLS 1.3, and 1.2 for older clients
/// (RFC 8489 §6.2.3); DTLS 1.2, the newest in libssl.
///
/// A renewed certificate is read with ``reload()``, or with ``renewal()`` and ``use(_:)``. Planes use it within a tick.
/// Existing clients keep the previous one.
///
/// Concurrency model: any thread.
package final class EndpointSecurity: Sendable {
    /// One certificate with its settings.
    ///
    /// Sendable: many threads may use libssl's contexts once they are created.
    final class Contexts: @unchecked Sendable {  // SAFETY: three `let`s; libssl locks shared state.
        let streams: OpaquePointer
        let datagrams: OpaquePointer
        let version: Int

        init(_ certificateFile: String, _ keyFile: String, version: Int) throws(ApusError) {
            var reason = [CChar](repeating: 0, count: 256)
            let streams = apus_tls_server_context(certificateFile, keyFile, &reason, reason.count)
            guard let streams, apus_tls_context_allow_12(streams) == 1,
                let datagrams = apus_dtls_server_context(certificateFile, keyFile, &reason, reason.count)
            else {
                apus_tls_context_free(streams)
                let words = String(nullTerminated: reason)
                throw ApusError(
                    .configurationInvalid,
                    "the relay's certificate \(certificateFile) with the key \(keyFile) cannot be used: \(words)")
            }
            self.streams = streams
            self.datagrams = datagrams
            self.version = version
        }

        deinit {
            apus_tls_context_free(streams)
            apus_dtls_context_free(datagrams)
        }
    }

    /// Identifies a version of a file.
    fileprivate struct Stamp: Equatable, Sendable {
        var inode: UInt64
        var size: Int
        var seconds: Int
        var nanoseconds: Int

        init?(_ path: String) {
            var facts = stat()
            guard stat(path, &facts) == 0 else { return nil }
            inode = UInt64(facts.st_ino)
            size = Int(facts.st_size)
            seconds = facts.st_mtim.tv_sec
            nanoseconds = facts.st_mtim.tv_nsec
        }
    }

    fileprivate struct State: Sendable {
        var contexts: Contexts
        var stamps: [Stamp?]
    }

    private let certificateFile: String
    private let keyFile: String
    private let state: Mutex<State>
    private let current = Atomic<Int>(0)

    /// Reads PEM files: the server's certificate with its chain, and its key.
    ///
    /// - Throws: 10022 if one cannot be used.
    package init(certificateFile: String, keyFile: String) throws(ApusError) {
        self.certificateFile = certificateFile
        self.keyFile = keyFile
        let stamps = [Stamp(certificateFile), Stamp(keyFile)]
        state = Mutex(State(contexts: try Contexts(certificateFile, keyFile, version: 0), stamps: stamps))
    }

    /// A certificate that was read and validated, and is not in use yet.
    package struct Renewal: Sendable {
        fileprivate let state: State
    }

    /// Reads changed files. Nothing is changed before ``use(_:)``.
    ///
    /// - Returns: nil if there is nothing new.
    /// - Throws: 10022 if they cannot be used.
    package func renewal() throws(ApusError) -> Renewal? {
        let stamps = [Stamp(certificateFile), Stamp(keyFile)]
        guard stamps != state.withLock({ $0.stamps }) else { return nil }
        let version = current.load(ordering: .relaxed) + 1
        return Renewal(state: State(contexts: try Contexts(certificateFile, keyFile, version: version), stamps: stamps))
    }

    /// Uses this certificate for new clients. Has no effect if it is older than the current one.
    package func use(_ renewal: Renewal) {
        let isNewer = state.withLock { state in
            guard renewal.state.contexts.version > state.contexts.version else { return false }
            state = renewal.state
            return true
        }
        if isNewer { current.store(renewal.state.contexts.version, ordering: .releasing) }
    }

    /// Reads changed files and uses them.
    ///
    /// - Returns: true if there is something new.
    /// - Throws: 10022 if they cannot be used; the current certificate stays.
    package func reload() throws(ApusError) -> Bool {
        guard let renewal = try renewal() else { return false }
        use(renewal)
        return true
    }

    /// The number of the certificates that were read.
    var version: Int { current.load(ordering: .acquiring) }

    /// The current certificate.
    func contexts() -> Contexts { state.withLock { $0.contexts } }
}
