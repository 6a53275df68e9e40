import ApusCore
import ApusSessions
import Testing

@Suite("Who has asked for what takes effect later (IV-A3, IV-A6, IV-B10)")
struct AuthorityTests {
    private static let (owner, guest) = (AccountID(unchecked: "owner"), AccountID(unchecked: "guest"))
    private static let token = TokenMark(tag: 7, issuedAt: 1000, expires: 2000)

    private static func authority(_ account: AccountID, isRestricted: Bool = false) -> Authority {
        Authority(account: account, identities: ["phone"], token: token, isRestricted: isRestricted)
    }

    private static func code(
        _ authority: Authority, _ revoked: [RevocationRecord.Subject], at now: Int64
    ) -> ErrorCode? {
        do throws(ApusError) {
            try authority.checkToken(
                RevocationList(revoked.map { RevocationRecord($0, expires: 9000) }), wallSeconds: now)
            return nil
        } catch {
            return error.code
        }
    }

    @Test(
        "A revocation of a token, an access id or an account ends what was asked for before it, and nothing else",
        arguments: [
            (RevocationRecord.Subject.token(7), ErrorCode.tokenInvalid), (.token(8), nil),
            (.identity("phone", owner, issuedBefore: 1001), .tokenInvalid),
            (.identity("phone", owner, issuedBefore: 1000), nil),
            (.identity("tablet", owner, issuedBefore: 1001), nil),
            (.identity("phone", guest, issuedBefore: 1001), nil),
            (.account(owner, issuedBefore: 1001), .tokenInvalid), (.account(owner, issuedBefore: 1000), nil),
            (.account(guest, issuedBefore: 1001), nil),
        ] as [(RevocationRecord.Subject, ErrorCode?)])
    func revocations(subject: RevocationRecord.Subject, code: ErrorCode?) {
        #expect(Self.code(Self.authority(Self.owner), [subject], at: 1500) == code)
        // Also long after the token has expired by itself.
        #expect(Self.code(Self.authority(Self.owner), [subject], at: 8000) == code)
    }

    @Test("Temporary access ends with its token; another token is renewed, and its end is no loss of a right")
    func expiry() {
        for (isRestricted, now, code) in [
            (true, 1999, nil), (true, 2000, .tokenExpired), (false, 2000, nil), (false, 9_000_000, nil),
        ] as [(Bool, Int64, ErrorCode?)] {
            #expect(Self.code(Self.authority(Self.owner, isRestricted: isRestricted), [], at: now) == code)
        }
    }

    @Test("The right of the account is that of the record now, and a disabled device is not a lost right")
    func rights() {
        var record = DeviceRecord(device: DeviceID(unchecked: "cam"), account: Self.owner, epoch: 1)
        record.isDisabled = true
        func code(_ account: AccountID, _ control: Bool, _ record: DeviceRecord?) -> ErrorCode? {
            do throws(ApusError) {
                try Self.authority(account).checkRight(to: record, control: control)
                return nil
            } catch {
                return error.code
            }
        }
        for control in [false, true] {
            #expect(code(Self.owner, control, record) == nil)
            #expect(code(Self.guest, control, record) == .illegalRelation)
            #expect(code(Self.owner, control, nil) == .illegalRelation)
        }
        record.shares = [DeviceShare(account: Self.guest, control: false)]
        #expect(code(Self.guest, false, record) == nil && code(Self.guest, true, record) == .notAllowed)
        record.shares = [DeviceShare(account: Self.guest, control: true)]
        #expect(code(Self.guest, true, record) == nil)
    }
}
