import Synchronization

/// The keys of sessions: those that verify tokens, and those that seal tickets.
package struct SessionKeys: Sendable {
    package var verifier: TokenVerifier
    package var sealer: TicketSealer

    package init(verifier: TokenVerifier, sealer: TicketSealer) { (self.verifier, self.sealer) = (verifier, sealer) }
}

/// The key with which this node signs tokens. It can be replaced while requests run.
///
/// Isolation: any thread.
package final class TokenSigning: Sendable {
    private let signer: Mutex<TokenSigner?>

    /// - Parameter signer: nil if this node signs no tokens.
    package init(_ signer: TokenSigner?) { self.signer = Mutex(signer) }

    /// The current key; nil if this node signs no tokens.
    package var current: TokenSigner? { signer.withLock { $0 } }

    /// Signs with another key from now on.
    package func use(_ new: TokenSigner?) { signer.withLock { $0 = new } }
}
