import ApusCore
import ApusSessions
import Foundation
import Testing

/// What nodes of before decision 52 issued, with another library of cryptography.
@Suite("Tokens and tickets of earlier releases (D3, D6, IV-A6)")
struct EarlierSealTests {
    private let sealer = TicketSealer(clusterKey: Array(0..<32))

    private static func bytes(_ text: String) -> [UInt8] {
        Hexadecimal.bytes(text.filter { !$0.isWhitespace }) ?? []
    }

    private static let ticket = bytes(
        """
        03ec13aef879b39d48c5864fe5d2665769d4f3eecb7aa3f7329f71869b889a2ec620ab67074eb560c3d56cf3894d3521
        499c065d5dac0810dc68b1dd8b2eb9005976bc901cae26fb2fb8ed7d6bbe79a93de209e5953aebde0ce191625824a539
        b5f9852fb205fd8e2c553ffed3cb5262af8757298dbe
        """)
    private static let grant = bytes(
        """
        6d1a480939a538d88650012230fb87c51e580a8cee2f51df100674d9d2799d660d6b327584f575bdd20c95cf63ba4690
        36fe105e512b004fb1dad473bd0782c1035935c33cd2bbbcf44bd0d23eee23080877384d45de9c886ff8ce48ae52a271
        98cdee377500e14ec6b6d56e3b4bcab986
        """)
    private static let token =
        """
        eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ3aG8iLCJleHAiOjE4MDAwMDAwNjAsImFjY3QiOiJhY21lIiwiaXN\
        zIjoiaG9tZSIsImRldiI6ImNhbS0xIiwiaWF0IjoxODAwMDAwMDAwLCJqdGkiOiJ0MSIsInJvbGUiOiJkZXZpY2UifQ.33kJux_9\
        oxas62jBetjr2UnDLkc4yw2FlEOKjWGRpyw0Q8FOMPKkGHBco6K12UFW34ifioN6MYDihOh-UE3GXQ
        """
    private static let publicKey = """
        -----BEGIN PUBLIC KEY-----
        MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAECgmsGlkhSupkDs3pwqTyUVGjZJNk
        s3X6Qx0YitLac/oOLnsgzHV4gR6PadBb38CotZ1ddIulIsoW3yoG9obUiA==
        -----END PUBLIC KEY-----
        """

    private let session = Session(
        id: "s-1", role: .app, access: AccessID(unchecked: "phone"), account: AccountID(unchecked: "acme"), device: nil,
        allowedDevices: [DeviceID(unchecked: "cam-1")], sinceMilliseconds: 4, instance: 7,
        token: TokenMark(tag: 9, issuedAt: 1, expires: 1000))

    @Test("A ticket of an earlier release opens its session, and its grant permits to watch")
    func tickets() throws {
        #expect(try sealer.open(Self.ticket, wallSeconds: 499) == session)
        #expect(throws: ApusError(.tokenExpired)) { try sealer.open(Self.ticket, wallSeconds: 500) }
        #expect(sealer.allows(Self.grant, session, device: DeviceID(unchecked: "cam-1"), wallSeconds: 499))
        #expect(!sealer.allows(Self.grant, session, device: DeviceID(unchecked: "cam-1"), wallSeconds: 500))
        // What is sealed now has the same size.
        #expect(try sealer.seal(session, expiresAt: 500).count == Self.ticket.count)
    }

    @Test("A grant for one channel names it as in earlier releases (CALL-13, IV-C5)")
    func channelGrants() throws {
        let call = CallID(unchecked: "0ab-0123456789abcdef0123456789abcdef")
        let names = [
            (ChannelID(call: call, side: .caller), true, "call.0ab-0123456789abcdef0123456789abcdef.0p"),
            (ChannelID(call: call, side: .winner), false, "call.0ab-0123456789abcdef0123456789abcdef.1w"),
            (ChannelID(device: DeviceID(unchecked: "cam-1"), source: 32_768), false, "cam-1.32768w"),
        ]
        for (channel, isPublished, name) in names {
            #expect(channel.grantName(isPublished: isPublished).rawValue == name)
        }
    }

    @Test("A token of an earlier release is valid under its key")
    func tokens() throws {
        let verifier = try TokenVerifier(publicKeyPEM: Self.publicKey, cluster: ClusterID(unchecked: "home"))
        let claims = try verifier.verify(Self.token, wallSeconds: 1_800_000_000)
        #expect(claims.sub == "who" && claims.dev == "cam-1" && claims.jti == "t1")
        #expect(throws: ApusError(.tokenExpired)) { try verifier.verify(Self.token, wallSeconds: 1_800_000_090) }
    }
}
