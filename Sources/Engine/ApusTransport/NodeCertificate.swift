import ApusCore
import ApusCrypto
import ApusTLS
import NIOCore

/// The identity in a node's certificate: the URI `apus://node/NAME` in its alternative names.
///
/// It is a URI and not a DNS name, so a host's name never counts as a node's. A certificate of a client listener has no
/// such URI, and cannot open a node link.
enum NodeCertificate {
    /// The certificate that the peer of an open connection presented; nil in its handshake. Call on the channel's loop.
    static func ofPeer(_ channel: any Channel) -> Certificate? {
        (try? channel.pipeline.syncOperations.handler(type: TLSHandler.self)).flatMap { ofPeer($0) }
    }

    private static func ofPeer(_ handler: TLSHandler) -> Certificate? {
        handler.peerCertificate.flatMap { try? Certificate(derRepresentation: $0) }
    }

    static func uri(of name: NodeName) -> String { "apus://node/\(name)" }

    /// The node that a certificate names; nil if it names none.
    static func nodeName(of certificate: Certificate) -> NodeName? {
        for case .uri(let uri) in certificate.alternativeNames ?? [] where uri.hasPrefix("apus://node/") {
            return NodeName(rawValue: String(uri.dropFirst("apus://node/".count)))
        }
        return nil
    }
}
