import ApusCore
import ApusSessions
import ApusStorage
import Testing

@Suite("What operators revoke (IV-A6)")
struct RevocationListTests {
    private let acme = AccountID(unchecked: "acme")

    private func session(
        access: String = "phone", account: String = "acme", device: String? = nil, issuedAt: Int64 = 100,
        id: String? = "t1"
    ) -> Session {
        Session(
            id: "s", role: device == nil ? .app : .device, access: AccessID(unchecked: access),
            account: AccountID(unchecked: account), device: device.map { DeviceID(unchecked: $0) },
            sinceMilliseconds: 0,
            token: TokenMark(tag: id.map(TokenMark.tag) ?? 0, issuedAt: issuedAt, expires: 1_000))
    }

    private func list(_ subjects: RevocationRecord.Subject...) -> RevocationList {
        RevocationList(subjects.map { RevocationRecord($0, expires: 1_000) })
    }

    @Test("A token is revoked by its id, and one without an id never is by that")
    func token() {
        let list = list(.token(TokenMark.tag(of: "t1")))
        #expect(list.revokes(session()))
        #expect(!list.revokes(session(id: "t2")) && !list.revokes(session(id: nil)))
        #expect(!self.list(.token(0)).revokes(session(id: nil)))
        #expect(!RevocationList().revokes(session()))
    }

    @Test("An identity is revoked by its access id or its device's, in its own account, for tokens of before")
    func identity() {
        let list = list(.identity("phone", acme, issuedBefore: 101), .identity("cam", acme, issuedBefore: 101))
        #expect(list.revokes(session()))
        #expect(list.revokes(session(access: "unit-7", device: "cam")))
        #expect(!list.revokes(session(issuedAt: 101)), "issued anew")
        #expect(!list.revokes(session(account: "other")) && !list.revokes(session(access: "tablet")))
    }

    @Test("An account's tokens are revoked where they were issued before a time; of two times the later one counts")
    func account() {
        let list = list(.account(acme, issuedBefore: 101), .account(acme, issuedBefore: 50))
        #expect(list.revokes(session()) && list.revokes(session(access: "x", device: "y", id: nil)))
        #expect(!list.revokes(session(issuedAt: 101)) && !list.revokes(session(account: "other")))
    }
}
