import ApusCore
import ApusCrypto
import ApusSessions
import Foundation
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

    private func signer(_ key: P256.Signing.PrivateKey? = nil) throws -> TokenSigner {
        try TokenSigner(privateKeyPEM: (key ?? self.key).pemRepresentation)
    }

    private func verifier() throws -> TokenVerifier {
        try TokenVerifier(publicKeyPEM: key.publicKey.pemRepresentation, cluster: cluster)
    }

    private func expect(_ code: ErrorCode, _ token: String, at time: Int64 = now) throws {
        let verifier = try verifier()
        let error = #expect(throws: ApusError.self) { try verifier.verify(token, wallSeconds: time) }
        #expect(error?.code == code)
    }

    @Test("A token that the cluster signed gives back its claims")
    func roundTrip() async throws {
        let token = try signer().sign(claims())
        let read = try verifier().verify(token, wallSeconds: Self.now)
        #expect(read == claims())
        let session = try Session(claims: read, id: "s", sinceMilliseconds: 1)
        #expect(session.role == .device)
        #expect(session.device == DeviceID(unchecked: "cam-1"))
    }

    @Test("With two public keys, tokens of both are valid; anything else in the file is refused (10022)")
    func twoKeys() async throws {
        let new = P256.Signing.PrivateKey()
        let both = key.publicKey.pemRepresentation + "\n" + new.publicKey.pemRepresentation + "\n"
        let verifier = try TokenVerifier(publicKeyPEM: both, cluster: cluster)
        for key in [key, new] {
            let token = try signer(key).sign(claims())
            #expect(try verifier.verify(token, wallSeconds: Self.now) == claims())
        }
        let foreign = try signer(P256.Signing.PrivateKey()).sign(claims())
        #expect(throws: ApusError(.tokenInvalid)) { try verifier.verify(foreign, wallSeconds: Self.now) }
        let third = P256.Signing.PrivateKey().publicKey.pemRepresentation
        for text in [both + third, String(both.dropLast(60)), "", both.replacing("BEGIN", with: "BEGUN")] {
            #expect(throws: ApusError(.configurationInvalid)) {
                try TokenVerifier(publicKeyPEM: text, cluster: cluster)
            }
        }
    }

    @Test("An expired token is 12002, and 30 s of leeway are given for clocks that differ (IV-A2)")
    func expiry() async throws {
        let token = try signer().sign(claims())
        _ = try verifier().verify(token, wallSeconds: Self.now + 60 + 29)
        try expect(.tokenExpired, token, at: Self.now + 60 + 30)
    }

    @Test("A token from the future is 12001 beyond the leeway")
    func notYetValid() async throws {
        let token = try signer().sign(claims(issuedAt: Self.now + 30))
        _ = try verifier().verify(token, wallSeconds: Self.now)
        try expect(.tokenInvalid, try signer().sign(claims(issuedAt: Self.now + 31)))
    }

    @Test("A token of another key or another cluster is 12001")
    func foreign() async throws {
        try expect(.tokenInvalid, try signer(P256.Signing.PrivateKey()).sign(claims()))
        try expect(.tokenInvalid, try signer().sign(claims(cluster: "other")))
    }

    @Test("Algorithm none and an HMAC made with the public key are refused (RFC 8725 §2.1)")
    func algorithmConfusion() async throws {
        let genuine = try signer().sign(claims()).split(separator: ".")
        let none = Self.base64url(Data(#"{"alg":"none","typ":"JWT"}"#.utf8))
        try expect(.tokenInvalid, "\(none).\(genuine[1]).")
        try expect(.tokenInvalid, "\(none).\(genuine[1]).\(genuine[2])")

        let head = Self.base64url(Data(#"{"alg":"HS256","typ":"JWT"}"#.utf8))
        let body = "\(head).\(genuine[1])"
        let code = HMAC<SHA256>.authenticationCode(
            for: Data(body.utf8), using: Data(key.publicKey.pemRepresentation.utf8))
        try expect(.tokenInvalid, "\(body).\(Self.base64url(Data(code)))")
    }

    @Test("A changed character anywhere in the token is 12001")
    func tampered() async throws {
        let token = try signer().sign(claims())
        for offset in stride(from: 0, to: token.count - 2, by: 7) {
            var characters = Array(token)
            guard characters[offset] != "." else { continue }
            characters[offset] = characters[offset] == "A" ? "B" : "A"
            try expect(.tokenInvalid, String(characters))
        }
    }

    @Test("Text that is no token, and one that is too long, are 12001", arguments: ["", ".", "..", "a.b.c", "\u{0}"])
    func garbage(text: String) throws {
        try expect(.tokenInvalid, text)
        try expect(.tokenInvalid, text + String(repeating: "x", count: TokenVerifier.byteCountMax))
    }

    /// A token with any header and payload, signed by the cluster's key.
    private func token(_ header: String, _ payload: String) throws -> String {
        let body = "\(Self.base64url(Data(header.utf8))).\(Self.base64url(Data(payload.utf8)))"
        return "\(body).\(Self.base64url(try key.signature(for: Data(body.utf8)).rawRepresentation))"
    }

    private static let header = #"{"alg":"ES256","typ":"JWT"}"#

    @Test("A signed token of another issuer's making is read: order, space, claims that are not known, null")
    func otherIssuers() throws {
        let claims = try verifier().verify(
            try token(
                #"{"kid":"k1", "alg":"ES256"}"#,
                #" {"iss":"home","aud":["a"],"x":{"y":[1]},"exp":1800000060.0,"iat":1800000000,"dev":null,"#
                    + #""devices":["cam-1"],"role":"app","acct":"ac\u006de","sub":"who"} "#),
            wallSeconds: Self.now)
        #expect(
            claims.acct == "acme" && claims.dev == nil && claims.devices == ["cam-1"] && claims.exp == 1_800_000_060)
    }

    @Test(
        "A signed token is 12001 where its header is not understood, or a claim is missing, doubled or of another type",
        arguments: [
            (#"{"alg":"ES384"}"#, nil), (#"{"typ":"JWT"}"#, nil), (#"{"alg":"ES256","crit":["exp"]}"#, nil),
            ("[]", nil), (header, "[]"), (header, ""), (header, #"{"exp":1800000060}"#),
            (header, #"{"sub":"a","sub":"a","acct":"b","role":"app","exp":1800000060,"iat":1800000000,"iss":"home"}"#),
            (header, #"{"sub":"a","acct":"b","role":"app","exp":"1800000060","iat":1800000000,"iss":"home"}"#),
            (header, #"{"sub":"a","acct":"b","role":"app","exp":1800000060.5,"iat":1800000000,"iss":"home"}"#),
            (header, #"{"sub":1,"acct":"b","role":"app","exp":1800000060,"iat":1800000000,"iss":"home"}"#),
            (header, #"{"sub":"a","acct":"b","role":"app","exp":1800000060,"iat":1800000000,"iss":"home","dev":1}"#),
            (
                header,
                #"{"sub":"a","acct":"b","role":"app","exp":1800000060,"iat":1800000000,"iss":"home","devices":[1]}"#
            ),
        ])
    func unreadable(header: String, payload: String?) throws {
        let sound = #"{"sub":"a","acct":"b","role":"app","exp":1800000060,"iat":1800000000,"iss":"home"}"#
        _ = try verifier().verify(try token(Self.header, sound), wallSeconds: Self.now)
        try expect(.tokenInvalid, try token(header, payload ?? sound))
    }

    @Test("What a session is given is valid no longer than its token, and a token that has ended gives nothing")
    func remaining() {
        let mark = TokenMark(tag: 0, issuedAt: 0, expires: 1_000)
        #expect(mark.seconds(of: .seconds(3600), at: 900) == 100)
        #expect(mark.seconds(of: .seconds(60), at: 900) == 60)
        #expect(mark.seconds(of: .seconds(60), at: 1_000) == 0 && mark.seconds(of: .seconds(60), at: .max) == 0)
        #expect(!mark.hasEnded(at: 999) && mark.hasEnded(at: 1_000))
        let forever = TokenMark(tag: 0, issuedAt: 0, expires: .max)
        #expect(forever.seconds(of: .seconds(60), at: -5) == 60)
        #expect(TokenMark(tag: 0, issuedAt: 0, expires: .min).seconds(of: .seconds(60), at: 5) == 0)
    }

    @Test("Times at the ends of their range are compared, not overflowed")
    func extremeTimes() throws {
        func payload(_ exp: Int64, _ iat: Int64) -> String {
            #"{"sub":"a","acct":"b","role":"app","exp":\#(exp),"iat":\#(iat),"iss":"home"}"#
        }
        _ = try verifier().verify(try token(Self.header, payload(.max, .min)), wallSeconds: Self.now)
        try expect(.tokenExpired, try token(Self.header, payload(.min, .min)))
        try expect(.tokenInvalid, try token(Self.header, payload(.max, .max)))
    }

    @Test(
        "What is valid for as long as its token lasts for its own time at most, also where the token never expires",
        arguments: [
            (Int64.max, Int64(1_700_000_000), Int64(60)), (.max, -1_700_000_000, 60), (.min, 1_700_000_000, 0),
            (100, 90, 10), (100, 40, 60), (100, 39, 60), (100, 100, 0), (100, 101, 0),
        ])
    func lifetimes(expires: Int64, now: Int64, seconds: Int64) {
        #expect(TokenMark(tag: 1, issuedAt: 0, expires: expires).seconds(of: .seconds(60), at: now) == seconds)
    }

    @Test("Padding, another alphabet and loose bits in a part are 12001 (RFC 7515 §2)")
    func encoding() async throws {
        let parts = try signer().sign(claims()).split(separator: ".").map { String($0) }
        try expect(.tokenInvalid, "\(parts[0]).\(parts[1]).\(parts[2])==")
        try expect(.tokenInvalid, "\(parts[0]).\(parts[1]).\(parts[2].dropLast())+")
        // 64 bytes end within a character: its last four bits are nobody's.
        let last = try #require(parts[2].last)
        let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
        let next = alphabet[try #require(alphabet.firstIndex(of: last)) + 1]
        try expect(.tokenInvalid, "\(parts[0]).\(parts[1]).\(parts[2].dropLast())\(next)")
    }

    @Test("A device's token without a device opens no session")
    func deviceless() throws {
        #expect(throws: ApusError(.tokenInvalid)) {
            try Session(claims: claims(device: nil), id: "s", sinceMilliseconds: 1)
        }
    }

    @Test("A key that is not P-256 in PEM form is refused when it is read (10022)")
    func badKeys() {
        #expect(throws: ApusError(.configurationInvalid)) { _ = try TokenSigner(privateKeyPEM: "no key") }
        #expect(throws: ApusError(.configurationInvalid)) {
            _ = try TokenVerifier(publicKeyPEM: "no key", cluster: cluster)
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
        allowedDevices: [DeviceID(unchecked: "cam-1")], sinceMilliseconds: 42,
        token: TokenMark(tag: 7, issuedAt: 42, expires: .max))

    @Test("Any node with the cluster key reads the ticket")
    func roundTrip() throws {
        let ticket = try sealer.seal(session, expiresAt: 100)
        #expect(try TicketSealer(clusterKey: Array(0..<32)).open(ticket, wallSeconds: 99) == session)
    }

    @Test("While the cluster's key is changed, tickets of both keys are read, and the first key seals")
    func twoKeys() throws {
        let (old, new) = ([UInt8](0..<32), [UInt8](1...32))
        let adding = TicketSealer(keys: ClusterKeys(current: old, other: new))
        let using = TicketSealer(keys: ClusterKeys(current: new, other: old))
        let onlyNew = TicketSealer(clusterKey: new)
        for (from, to) in [(sealer, adding), (adding, sealer), (adding, using), (using, adding), (using, onlyNew)] {
            #expect(try to.open(try from.seal(session, expiresAt: 100), wallSeconds: 99) == session)
        }
        let late = try sealer.seal(session, expiresAt: 100)
        #expect(throws: ApusError(.tokenInvalid)) { try onlyNew.open(late, wallSeconds: 99) }
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

    /// Any content behind a true seal.
    private func sealed(_ content: [UInt8]) throws -> [UInt8] {
        let key = HKDF.deriveKey(
            inputKeyMaterial: Data(0..<32), info: Data("apus session tickets".utf8),
            outputByteCount: 32)
        return try AES.GCM.seal(content, using: key)
    }

    private func content(of ticket: [UInt8]) throws -> [UInt8] {
        let key = HKDF.deriveKey(
            inputKeyMaterial: Data(0..<32), info: Data("apus session tickets".utf8),
            outputByteCount: 32)
        return try AES.GCM.open(ticket, using: key)
    }

    @Test("A ticket keeps every field of a session", arguments: [Session.Role.device, .app, .admin])
    func fields(role: Session.Role) throws {
        var session = session
        session.role = role
        for device in [nil, DeviceID(unchecked: "cam-9")] {
            for allowed in [nil, [], ["cam-1", "cam-2"].map { DeviceID(unchecked: $0) }] {
                session.device = device
                session.allowedDevices = allowed
                session.sinceMilliseconds = .max
                #expect(try sealer.open(try sealer.seal(session, expiresAt: .max), wallSeconds: 0) == session)
            }
        }
    }

    @Test("Tickets are small: under 128 bytes for a phone that may see one camera")
    func size() throws {
        #expect(try sealer.seal(session, expiresAt: 100).count < 128)
    }

    @Test("Fields of a newer version are skipped; a ticket of before there were versions is 12001")
    func versions() throws {
        let plain = try content(of: try sealer.seal(session, expiresAt: 100))
        #expect(try sealer.open(try sealed(plain + [99, 8, 1, 2, 3, 4, 5, 6, 7, 8]), wallSeconds: 1) == session)
        #expect(throws: ApusError(.tokenInvalid)) {
            try sealer.open(try sealed([2] + plain.dropFirst()), wallSeconds: 1)
        }
        let json =
            #"{"kind":"session","session":"s","role":"app","access":"phone","account":"acme","since":4,"expires":100}"#
        #expect(throws: ApusError(.tokenInvalid)) { try sealer.open(try sealed(Array(json.utf8)), wallSeconds: 1) }
    }

    @Test("Content behind a true seal that is cut, or names something twice, is 12001")
    func malformed() throws {
        let plain = try content(of: try sealer.seal(session, expiresAt: 100))
        // Without its last field, the allowed device, a ticket is whole: it names none that may be reached.
        let short = plain.count - 2 - "cam-1".utf8.count
        for count in 0..<plain.count where count != short && count != short - 2 {
            #expect(throws: ApusError(.tokenInvalid)) {
                try sealer.open(try sealed(Array(plain[..<count])), wallSeconds: 1)
            }
        }
        #expect(throws: ApusError(.tokenInvalid)) { try sealer.open(try sealed(plain + [1, 1, 1]), wallSeconds: 1) }
    }

    @Test("A grant is none for a session whose token names other devices")
    func restricted() throws {
        let device = DeviceID(unchecked: "cam-1")
        let grant = try sealer.sealGrant(session, device: device, expiresAt: 100)
        var other = session
        other.allowedDevices = [DeviceID(unchecked: "cam-2")]
        #expect(!sealer.allows(grant, other, device: device, wallSeconds: 99))
        other.allowedDevices = []
        #expect(!sealer.allows(grant, other, device: device, wallSeconds: 99))
        other.allowedDevices = nil
        #expect(sealer.allows(grant, other, device: device, wallSeconds: 99))
    }

    @Test("Apps of two accounts with one access id are two identities, however long their names")
    func identities() {
        func key(_ account: String, _ access: String) -> String {
            var session = session
            (session.account, session.access) = (AccountID(unchecked: account), AccessID(unchecked: access))
            return session.entityKey
        }
        #expect(key("acme", "phone") == "acme/phone")
        let long = String(repeating: "a", count: 63)
        let keys = [
            key("acme", "phone"), key("other", "phone"), key("acme", long), key("other", long), key(long, long),
        ]
        #expect(Set(keys).count == keys.count)
        #expect(keys.allSatisfy { (1...63).contains($0.utf8.count) }, "\(keys)")
    }

    @Test("A ticket and a grant end with the token, however long they were to be valid")
    func endWithToken() throws {
        var session = session
        session.token = TokenMark(tag: 7, issuedAt: 42, expires: 100)
        let ticket = try sealer.seal(session, expiresAt: 1_000)
        #expect(try sealer.open(ticket, wallSeconds: 99) == session)
        #expect(throws: ApusError(.tokenExpired)) { try sealer.open(ticket, wallSeconds: 100) }
        // Renewed at a resume, it still knows.
        let renewed = try sealer.seal(try sealer.open(ticket, wallSeconds: 99), expiresAt: 2_000)
        #expect(throws: ApusError(.tokenExpired)) { try sealer.open(renewed, wallSeconds: 100) }
        let device = DeviceID(unchecked: "cam-1")
        let inCall = try sealer.sealGrant(session, device: device, peers: [device], expiresAt: 1_000)
        #expect(sealer.peers(of: inCall, session, device: device, wallSeconds: 5) == [device])
        #expect(!sealer.allows(inCall, session, device: device, wallSeconds: 5), "it is one of a call's channel")
        let grant = try sealer.sealGrant(session, device: device, expiresAt: 1_000)
        #expect(sealer.peers(of: grant, session, device: device, wallSeconds: 5) == nil)
        #expect(sealer.allows(grant, session, device: device, wallSeconds: 99))
        #expect(!sealer.allows(grant, session, device: device, wallSeconds: 100))
    }

    @Test("A ticket of before tickets knew their token ends its session when it ends itself")
    func withoutToken() throws {
        var plain = try content(of: try sealer.seal(session, expiresAt: 100))
        let start = try #require(plain.firstIndex(of: 14).flatMap { plain[$0 + 1] == 24 ? $0 : nil })
        plain.removeSubrange(start..<(start + 26))
        let read = try sealer.open(try sealed(plain), wallSeconds: 99)
        #expect(read.token == TokenMark(tag: 0, issuedAt: 0, expires: 100))
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
