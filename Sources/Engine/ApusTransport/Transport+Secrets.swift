import ApusCore
import ApusWire
import Logging
import NIOCore
import Synchronization

extension Transport {
    /// Uses other keys and certificates for new connections from now on. Open connections continue, except those whose
    /// peers have a certificate that is revoked now: these end at once.
    package func use(_ new: TransportSecrets) {
        secrets.withLock { $0 = new }
        guard new.revoked.count > 0 else { return }
        let (dialers, accepted) = state.withLock { state in
            (state.links.values.flatMap(\.dialers), state.accepted.values.map(\.channel))
        }
        for dialer in dialers { dialer.end(if: new.revoked) }
        for channel in accepted {
            channel.eventLoop.execute {
                // A connection in its handshake has no certificate yet, or is refused when it is complete.
                guard let certificate = NodeCertificate.ofPeer(channel), new.revoked.contains(certificate) else {
                    return
                }
                self.reject(
                    .revoked, ApusError(.certificateRevoked),
                    [LogKey.address: "\(channel.remoteAddress.map { "\($0)" } ?? "unknown")"])
                closeAtOnce(channel)
            }
        }
    }

    /// The certificate that is in use, and its authority; nil before ``start()``.
    package var certificates: (own: CertificateFacts, authority: CertificateFacts)? {
        secrets.withLock { $0.map { ($0.certificate, $0.authority) } }
    }
}
