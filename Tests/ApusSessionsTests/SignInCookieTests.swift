import ApusCore
import ApusSessions
import Testing

/// The cookies of browsers (docs/sign-in.md).
@Suite("The cookies of browsers")
struct SignInCookieTests {
    private let sealer = TicketSealer(clusterKey: Array(repeating: 7, count: 32))

    private static func browser(expires: Int64 = 2000) -> Session {
        var session = Session(
            id: "-", role: .admin, access: AccessID(unchecked: "web-1"), account: AccountID(unchecked: "home"),
            device: nil, allowedDevices: [DeviceID(unchecked: "cam")], sinceMilliseconds: 0,
            token: TokenMark(tag: 9, issuedAt: 1000, expires: expires))
        session.signIn = .max - 3
        return session
    }

    @Test("A cookie gives back its session until its token expires, and is not valid afterwards")
    func roundTrip() throws {
        let cookie = try sealer.sealSignIn(Self.browser())
        #expect(try sealer.openSignIn(cookie, wallSeconds: 1999) == Self.browser())
        #expect(throws: ApusError.self) { try sealer.openSignIn(cookie, wallSeconds: 2000) }
        let other = TicketSealer(clusterKey: Array(repeating: 8, count: 32))
        #expect(throws: ApusError.self) { try other.openSignIn(cookie, wallSeconds: 1500) }
        for index in cookie.indices {
            var changed = cookie
            changed[index] ^= 1
            #expect(throws: ApusError.self) { try sealer.openSignIn(changed, wallSeconds: 1500) }
        }
    }

    @Test("A ticket and a grant are no cookies, and a cookie is no ticket")
    func kinds() throws {
        let browser = Self.browser()
        let cookie = try sealer.sealSignIn(browser)
        #expect(throws: ApusError.self) { try sealer.open(cookie, wallSeconds: 1500) }
        let ticket = try sealer.seal(browser, expiresAt: 1900)
        #expect(throws: ApusError.self) { try sealer.openSignIn(ticket, wallSeconds: 1500) }
        let grant = try sealer.sealGrant(browser, device: DeviceID(unchecked: "cam"), expiresAt: 1900)
        #expect(throws: ApusError.self) { try sealer.openSignIn(grant, wallSeconds: 1500) }
        // The ticket of a browser's session ends with the sign-in: it has its tag, and its tab.
        var tab = browser
        tab.tab = 5
        let opened = try sealer.open(try sealer.seal(tab, expiresAt: 1900), wallSeconds: 1500)
        #expect(opened.signIn == browser.signIn && opened.tab == 5)
    }

    @Test("Signing out revokes the sign-in and no other, and the token revokes all of them")
    func revocations() {
        var (first, second) = (Self.browser(), Self.browser())
        (first.signIn, second.signIn) = (11, 12)
        let signedOut = RevocationList([RevocationRecord(.token(11), expires: 3000)])
        #expect(signedOut.revokes(first) && !signedOut.revokes(second))
        let revoked = RevocationList([RevocationRecord(.token(9), expires: 3000)])
        #expect(revoked.revokes(first) && revoked.revokes(second))
        var plain = Self.browser()
        (plain.signIn, plain.token.tag) = (0, 0)
        #expect(!RevocationList([RevocationRecord(.token(0), expires: 3000)]).revokes(plain))
    }

    @Test("Each tab is a client of its own; an app without one is the client of its access id, as before")
    func tabs() {
        var (first, second) = (Self.browser(), Self.browser())
        (first.role, second.role) = (.app, .app)
        #expect(first.entityKey == "home/web-1")
        (first.tab, second.tab) = (1, 2)
        #expect(first.entityKey != second.entityKey && first.entityKey != "home/web-1")
        first.access = AccessID(unchecked: String(repeating: "a", count: 63))
        second.access = first.access
        #expect(first.entityKey != second.entityKey)
    }
}
