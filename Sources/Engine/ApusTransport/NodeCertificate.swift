import ApusCore
import NIOSSL
import SwiftASN1
import X509

/// The identity in a node's certificate: the URI `apus://node/NAME` in its alternative names.
///
/// It is a URI and not a DNS name, so a host's name never counts as a node's. A certificate of a client listener has no
/// such URI, and cannot open a node link.
enum NodeCertificate {
    static func uri(of name: NodeName) -> String { "apus://node/\(name)" }

    /// The node that a verified certificate names; nil if it names none.
    static func nodeName(of certificate: NIOSSLCertificate) -> NodeName? {
        guard let bytes = try? certificate.toDERBytes(), let parsed = try? Certificate(derEncoded: bytes) else {
            return nil
        }
        return nodeName(of: parsed)
    }

    /// The node that a certificate names; nil if it names none.
    static func nodeName(of certificate: Certificate) -> NodeName? {
        guard let names = try? certificate.extensions.subjectAlternativeNames else { return nil }
        for case .uniformResourceIdentifier(let uri) in names where uri.hasPrefix("apus://node/") {
            return NodeName(rawValue: String(uri.dropFirst("apus://node/".count)))
        }
        return nil
    }
}
