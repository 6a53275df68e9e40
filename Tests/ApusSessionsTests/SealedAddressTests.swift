import ApusCore
import ApusSessions
import Foundation
import Testing

@Suite("Sealed addresses of files")
struct SealedAddressTests {
    private let sealer = TicketSealer(clusterKey: Array(repeating: 7, count: 32))
    private let cam = DeviceID(unchecked: "cam")

    private static func text(_ bytes: [UInt8]) -> String {
        Data(bytes).base64EncodedString().replacing("+", with: "-").replacing("/", with: "_").replacing("=", with: "")
    }

    private static func bytes(_ text: String) throws -> [UInt8] {
        let plain = text.replacing("-", with: "+").replacing("_", with: "/")
        let padding = String(repeating: "=", count: (4 - plain.utf8.count % 4) % 4)
        return Array(try #require(Data(base64Encoded: plain + padding)))
    }

    private func session() -> Session {
        Session(
            id: "abc", role: .app, access: AccessID(unchecked: "app-1"), account: AccountID(unchecked: "home"),
            device: nil, allowedDevices: [cam], sinceMilliseconds: 5,
            token: TokenMark(tag: 9, issuedAt: 1, expires: 2000))
    }

    @Test("An address gives back what it names and for whom, until its end or that of the token")
    func roundTrip() throws {
        let content = (0..<255).map { UInt8($0) }
        let (text, expires) = try sealer.sealAddress(session(), device: cam, content: content, expiresAt: 1900)
        #expect(expires == 1900 && text.utf8.allSatisfy { $0 != UInt8(ascii: "/") && $0 != UInt8(ascii: "+") })
        let opened = try sealer.openAddress(text, wallSeconds: 1899)
        #expect(opened.content == content && opened.expires == 1900)
        #expect(opened.session.device == cam && opened.session.account == session().account)
        #expect(opened.session.token == session().token && opened.session.id.isEmpty)
        #expect(throws: ApusError(.tokenExpired)) { try sealer.openAddress(text, wallSeconds: 1900) }
        #expect(try sealer.sealAddress(session(), device: cam, content: [], expiresAt: 9999).expires == 2000)
        #expect(throws: ApusError(.internalFailure)) {
            try sealer.sealAddress(session(), device: cam, content: [UInt8](repeating: 0, count: 256), expiresAt: 1)
        }
    }

    @Test("A changed address, another cluster's, a ticket and a grant are no addresses, and an address is no ticket")
    func forged() throws {
        let (text, _) = try sealer.sealAddress(session(), device: cam, content: [1, 2], expiresAt: 1900)
        let other = TicketSealer(clusterKey: Array(repeating: 8, count: 32))
        #expect(throws: ApusError(.tokenInvalid)) { try other.openAddress(text, wallSeconds: 1) }
        for index in text.utf8.indices {
            var changed = Array(text.utf8)
            let place = text.utf8.distance(from: text.utf8.startIndex, to: index)
            changed[place] = changed[place] == UInt8(ascii: "A") ? UInt8(ascii: "B") : UInt8(ascii: "A")
            #expect(throws: ApusError(.tokenInvalid)) {
                try sealer.openAddress(String(decoding: changed, as: UTF8.self), wallSeconds: 1)
            }
        }
        for no in ["", "a", "%%", String(repeating: "A", count: 5000)] {
            #expect(throws: ApusError(.tokenInvalid)) { try sealer.openAddress(no, wallSeconds: 1) }
        }
        let ticket = try sealer.seal(session(), expiresAt: 1900)
        let grant = try sealer.sealGrant(session(), device: cam, expiresAt: 1900)
        for bytes in [ticket, grant] {
            #expect(throws: ApusError(.tokenInvalid)) {
                try sealer.openAddress(Self.text(bytes), wallSeconds: 1)
            }
        }
        let bytes = try Self.bytes(text)
        #expect(throws: ApusError(.tokenInvalid)) { try sealer.open(bytes, wallSeconds: 1) }
        #expect(throws: ApusError(.tokenInvalid)) { try sealer.openSignIn(bytes, wallSeconds: 1) }
        #expect(!sealer.allows(bytes, session(), device: cam, wallSeconds: 1))
    }
}
