import ApusCore
import ApusSessions
import Crypto
import Foundation
import JWTKit
import Testing

@Suite("Tokens (IV-A6)")
struct TokenTests {
    private static let now: Int64 = 1_800_000_000
    private let key = P256.Signing.PrivateKey()
    private let cluster = ClusterID(unchecked: "home")

    private func claims(
        role: Session.Role = .device, device: String? = "cam-1", issuedAt: Int64 = now, lifetime: Int = 60,
        cluster: String = "home"
    ) -> TokenClaims {
        TokenClaims(
            access: AccessID(unchecked: "who"), account: AccountID(unchecked: "acme"), role: role,
            device: device.map { DeviceID(unchecked: $0) }, issuedAt: issuedAt, lifetime: .seconds(lifetime),
            cluster: ClusterID(unchecked: cluster), id: "t1")
    }

    private func signer(_ key: P256.Signing.PrivateKey? = nil) async throws -> TokenSigner {
        try await TokenSigner(privateKeyPEM: (key ?? self.key).pemRepresentation)
    }

    private func verifier() async throws -> TokenVerifier {
        try await TokenVerifier(publicKeyPEM: key.publicKey.pemRepresentation, cluster: cluster)
    }

    private func expect(_ code: ErrorCode, _ token: String, at time: Int64 = now) async throws {
        let verifier = try await verifier()
        let error = await #expect(throws: ApusError.self) { try await verifier.verify(token, wallSeconds: time) }
        #expect(error?.code == code)
    }

    @Test("A token that the cluster signed gives back its claims")
    func roundTrip() async throws {
        let token = try await signer().sign(claims())
        let read = try await verifier().verify(token, wallSeconds: Self.now)
        #expect(read == claims())
        let session = try Session(claims: read, id: "s", sinceMilliseconds: 1)
        #expect(session.role == .device)
        #expect(session.device == DeviceID(unchecked: "cam-1"))
    }

    @Test("An expired token is 12002, and 30 s of leeway are given for clocks that differ")
    func expiry() async throws {
        let token = try await signer().sign(claims())
        _ = try await verifier().verify(token, wallSeconds: Self.now + 60 + 29)
        try await expect(.tokenExpired, token, at: Self.now + 60 + 30)
    }

    @Test("A token from the future is 12001 beyond the leeway")
    func notYetValid() async throws {
        let token = try await signer().sign(claims(issuedAt: Self.now + 30))
        _ = try await verifier().verify(token, wallSeconds: Self.now)
        try await expect(.tokenInvalid, try await signer().sign(claims(issuedAt: Self.now + 31)))
    }

    @Test("A token of another key or another cluster is 12001")
    func foreign() async throws {
        try await expect(.tokenInvalid, try await signer(P256.Signing.PrivateKey()).sign(claims()))
        try await expect(.tokenInvalid, try await signer().sign(claims(cluster: "other")))
    }

    @Test("Algorithm none and an HMAC made with the public key are refused (RFC 8725 §2.1)")
    func algorithmConfusion() async throws {
        let genuine = try await signer().sign(claims()).split(separator: ".")
        let none = Self.base64url(Data(#"{"alg":"none","typ":"JWT"}"#.utf8))
        try await expect(.tokenInvalid, "\(none).\(genuine[1]).")
        try await expect(.tokenInvalid, "\(none).\(genuine[1]).\(genuine[2])")

        let head = Self.base64url(Data(#"{"alg":"HS256","typ":"JWT"}"#.utf8))
        let body = "\(head).\(genuine[1])"
        let code = HMAC<SHA256>.authenticationCode(
            for: Data(body.utf8), using: SymmetricKey(data: Data(key.publicKey.pemRepresentation.utf8)))
        try await expect(.tokenInvalid, "\(body).\(Self.base64url(Data(code)))")
    }

    @Test("A changed character anywhere in the token is 12001")
    func tampered() async throws {
        let token = try await signer().sign(claims())
        for offset in stride(from: 0, to: token.count - 2, by: 7) {
            var characters = Array(token)
            guard characters[offset] != "." else { continue }
            characters[offset] = characters[offset] == "A" ? "B" : "A"
            try await expect(.tokenInvalid, String(characters))
        }
    }

    @Test("Text that is no token, and one that is too long, are 12001", arguments: ["", ".", "..", "a.b.c", "\u{0}"])
    func garbage(text: String) async throws {
        try await expect(.tokenInvalid, text)
        try await expect(.tokenInvalid, text + String(repeating: "x", count: TokenVerifier.byteCountMax))
    }

    @Test("A device's token without a device opens no session")
    func deviceless() throws {
        #expect(throws: ApusError(.tokenInvalid)) {
            try Session(claims: claims(device: nil), id: "s", sinceMilliseconds: 1)
        }
    }

    @Test("A key that is not P-256 in PEM form is refused when it is read (10022)")
    func badKeys() async {
        await #expect(throws: ApusError(.configurationInvalid)) { _ = try await TokenSigner(privateKeyPEM: "no key") }
        await #expect(throws: ApusError(.configurationInvalid)) {
            _ = try await TokenVerifier(publicKeyPEM: "no key", cluster: cluster)
        }
    }

    private static func base64url(_ data: Data) -> String {
        data.base64EncodedString().replacing("+", with: "-").replacing("/", with: "_").replacing("=", with: "")
    }
}

@Suite("Session tickets and grants (D6)")
struct TicketSealerTests {
    private let sealer = TicketSealer(clusterKey: Array(0..<32))
    private let session = Session(
        id: "s1", role: .app, access: AccessID(unchecked: "phone"), account: AccountID(unchecked: "acme"), device: nil,
        allowedDevices: [DeviceID(unchecked: "cam-1")], sinceMilliseconds: 42)

    @Test("Any node with the cluster key reads the ticket")
    func roundTrip() throws {
        let ticket = try sealer.seal(session, expiresAt: 100)
        #expect(try TicketSealer(clusterKey: Array(0..<32)).open(ticket, wallSeconds: 99) == session)
    }

    @Test("An expired ticket is 12002")
    func expired() throws {
        let ticket = try sealer.seal(session, expiresAt: 100)
        #expect(throws: ApusError(.tokenExpired)) { try sealer.open(ticket, wallSeconds: 100) }
    }

    @Test("A ticket with any bit flipped, cut short, or of another cluster is 12001")
    func tampered() throws {
        let ticket = try sealer.seal(session, expiresAt: 100)
        for index in ticket.indices {
            var changed = ticket
            changed[index] ^= 1
            #expect(throws: ApusError(.tokenInvalid)) { try sealer.open(changed, wallSeconds: 1) }
            #expect(throws: ApusError(.tokenInvalid)) { try sealer.open(Array(ticket[..<index]), wallSeconds: 1) }
        }
        let other = TicketSealer(clusterKey: Array(1...32))
        #expect(throws: ApusError(.tokenInvalid)) { try other.open(ticket, wallSeconds: 1) }
    }

    @Test("A ticket over the bound is not opened")
    func tooLong() {
        let bytes = [UInt8](repeating: 7, count: TicketSealer.byteCountMax + 1)
        #expect(throws: ApusError(.tokenInvalid)) { try sealer.open(bytes, wallSeconds: 1) }
    }

    @Test("A grant allows its own bearer its own device until it expires, and is no ticket")
    func grants() throws {
        let device = DeviceID(unchecked: "cam-1")
        let grant = try sealer.sealGrant(session, device: device, expiresAt: 100)
        #expect(sealer.allows(grant, session, device: device, wallSeconds: 99))
        #expect(!sealer.allows(grant, session, device: device, wallSeconds: 100))
        #expect(!sealer.allows(grant, session, device: DeviceID(unchecked: "cam-2"), wallSeconds: 99))
        var other = session
        other.account = AccountID(unchecked: "else")
        #expect(!sealer.allows(grant, other, device: device, wallSeconds: 99))
        #expect(throws: ApusError(.tokenInvalid)) { try sealer.open(grant, wallSeconds: 1) }
        let ticket = try sealer.seal(session, expiresAt: 100)
        #expect(!sealer.allows(ticket, session, device: device, wallSeconds: 1))
    }
}
