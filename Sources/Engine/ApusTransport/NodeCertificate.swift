import ApusCore
import NIOSSL
import SwiftASN1
import X509

/// The identity in a node's certificate: a URI among its alternative names, `apus://node/NAME`.
///
/// A URI and not a DNS name, so that no host's name can be taken for a node's, and a certificate for
/// the clients' door, which has no such name, opens no node link.
enum NodeCertificate {
    static func uri(of name: NodeName) -> String { "apus://node/\(name)" }

    /// The node that a verified certificate belongs to; nil where it is no node's.
    static func nodeName(of certificate: NIOSSLCertificate) -> NodeName? {
        guard let bytes = try? certificate.toDERBytes(), let parsed = try? Certificate(derEncoded: bytes),
            let names = try? parsed.extensions.subjectAlternativeNames
        else { return nil }
        for case .uniformResourceIdentifier(let uri) in names where uri.hasPrefix("apus://node/") {
            return NodeName(rawValue: String(uri.dropFirst("apus://node/".count)))
        }
        return nil
    }
}
