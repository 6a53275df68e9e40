import ApusCore
import ApusCrypto
import ApusSessions
import Foundation

private let now: Int64 = 1_800_000_000
private let cluster = ClusterID(unchecked: "fuzz")
private let key = P256.Signing.PrivateKey()
private let verifier = try? TokenVerifier(publicKeyPEM: key.publicKey.pemRepresentation, cluster: cluster)

/// IV-A6: what the cluster's key did not sign is no token. Of what it signed only ES256 of this cluster, in its time,
/// is one. None of it can be changed.
///
/// The input is a header and its claims, parted by a newline. They are signed here; as they came they are no token.
func fuzzToken(_ input: [UInt8]) {
    guard let verifier else { preconditionFailure("there is no key") }
    func read(_ token: String) -> TokenClaims? { try? verifier.verify(token, wallSeconds: now) }
    precondition(read(String(decoding: input, as: UTF8.self)) == nil, "a forged token is accepted")
    let parts = input.split(separator: UInt8(ascii: "\n"), maxSplits: 1, omittingEmptySubsequences: false)
    guard parts.count == 2 else { return }
    let signed = text(parts[0]) + "." + text(parts[1])
    guard let signature = try? key.signature(for: Data(signed.utf8)) else { return }
    let token = signed + "." + text(signature.rawRepresentation)
    guard let claims = read(token) else { return }
    let header = JSONValue(parts[0])
    precondition(header?["alg"]?.string == "ES256" && header?["crit"] == nil, "another algorithm is accepted")
    precondition(claims.iss == cluster.rawValue, "another cluster's token is accepted")
    let leeway = TokenVerifier.leewaySeconds
    precondition(claims.exp > now - leeway && claims.iat <= now + leeway, "a token is accepted out of its time")
    precondition((claims.nbf ?? now) <= now + leeway, "a token is accepted before its time")
    var forged = Array(token.utf8)
    forged[(input.count * 31 + Int(input[0])) % forged.count] ^= 1
    precondition(read(String(decoding: forged, as: UTF8.self)) == nil, "a changed token is accepted")
    guard let session = try? Session(claims: claims, id: "s", sinceMilliseconds: 0) else { return }
    precondition(session.account.rawValue == claims.acct && session.access.rawValue == claims.sub, "another's names")
    precondition((session.role == .device) == (session.device != nil), "a device without a name, or an app with one")
    precondition((session.allowedDevices == nil) == (claims.devices == nil), "a list of devices counts as none")
    let rest = session.token.seconds(of: .seconds(60), at: now)
    precondition((0...60).contains(rest) && (rest > 0) != session.token.hasEnded(at: now), "it outlives its token")
}

/// Base64 as tokens have it (RFC 7515 §2).
private func text(_ bytes: some Collection<UInt8>) -> String {
    Data(bytes).base64EncodedString().replacing("+", with: "-").replacing("/", with: "_").replacing("=", with: "")
}
