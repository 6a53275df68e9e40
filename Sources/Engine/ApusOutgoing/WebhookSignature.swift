import ApusCore
import ApusCrypto
import Foundation

/// The signature of a webhook's request: the header `Apus-Signature: t=SECONDS,v1=HEX`. While a secret is being
/// replaced, the header has another `v1` for each further secret.
///
/// The code is the HMAC-SHA256 (RFC 2104), under the shared secret, of the seconds in decimal digits, a full stop and
/// the body. A receiver computes it again, compares it in constant time, and refuses requests that are minutes old.
package enum WebhookSignature {
    package static let header = "Apus-Signature"

    /// - Parameter wallSeconds: the time of the attempt, in Unix seconds.
    package static func value(of body: [UInt8], secrets: [[UInt8]], wallSeconds: Int64) -> String {
        let codes = secrets.map { secret in
            let code = HMAC<SHA256>.authenticationCode(for: Array("\(wallSeconds).".utf8), then: body, using: secret)
            return ",v1=\(Hexadecimal.text(code))"
        }
        return "t=\(wallSeconds)" + codes.joined()
    }
}
