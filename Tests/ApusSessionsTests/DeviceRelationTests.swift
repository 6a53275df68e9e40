import ApusCore
import ApusSessions
import ApusTestKit
import ApusWire
import SwiftProtobuf
import Testing

@Suite("Which accounts may use a device (IV-B8, IV-B10)")
struct DeviceRelationTests {
    private static let (anna, ben, carl) = (
        AccountID(unchecked: "anna"), AccountID(unchecked: "ben"), AccountID(unchecked: "carl")
    )

    private static func record(of account: AccountID?) -> DeviceRecord {
        DeviceRecord(device: DeviceID(unchecked: "cam"), account: account, epoch: 1)
    }

    private static func fails(
        _ code: ErrorCode, _ record: DeviceRecord, _ change: DeviceRelationChange, by client: AccountID?
    ) {
        var changed = record
        #expect(
            performing: {
                _ = try changed.apply(change, by: client, now: 5)
            }, throws: { ($0 as? ApusError)?.code == code })
        #expect(changed == record, "\(change) changed the record although it failed")
    }

    @Test("Bound already is 8022, bound to another 8023; only an operator binds (IV-B8)")
    func binding() throws {
        var record = Self.record(of: nil)
        #expect(try record.apply(.bind(Self.anna), by: nil, now: 5) == [])
        #expect(record.account == Self.anna && record.boundAtUnixMilliseconds == 5000)
        Self.fails(.boundToThisUser, record, .bind(Self.anna), by: nil)
        Self.fails(.boundToOtherUser, record, .bind(Self.ben), by: nil)
        Self.fails(.illegalRelation, Self.record(of: nil), .bind(Self.ben), by: Self.ben)
    }

    @Test("A device goes to users of its own customer only (8024), and a customer changes its own devices only (IV-B8)")
    func customers() throws {
        let (acme, other) = (CustomerID(unchecked: "acme"), CustomerID(unchecked: "other"))
        var record = Self.record(of: nil)
        func apply(
            _ change: DeviceRelationChange, by client: DeviceClient, of customer: CustomerID?
        ) -> ErrorCode? {
            do throws(ApusError) {
                _ = try record.apply(change, by: client, customer: customer, now: 5)
                return nil
            } catch {
                return error.code
            }
        }
        // A device of no customer, and a user of one.
        #expect(apply(.bind(Self.anna), by: .operator, of: acme) == .otherCustomer)
        #expect(apply(.bind(Self.anna), by: .customer(acme), of: acme) == .otherCustomer)
        #expect(apply(.assign(acme), by: .customer(acme), of: nil) == .illegalRelation)
        #expect(apply(.assign(acme), by: .account(Self.anna), of: nil) == .illegalRelation)
        #expect(apply(.assign(acme), by: .operator, of: nil) == nil && record.customer == acme)
        #expect(apply(.bind(Self.anna), by: .customer(other), of: other) == .otherCustomer)
        for customer in [nil, other] { #expect(apply(.bind(Self.anna), by: .operator, of: customer) == .otherCustomer) }
        #expect(apply(.bind(Self.anna), by: .customer(acme), of: acme) == nil && record.account == Self.anna)

        let share = DeviceRelationChange.share(DeviceShare(account: Self.ben, control: true))
        for change in [share, .transfer(Self.ben)] {
            for client in [DeviceClient.account(Self.anna), .customer(acme), .operator] {
                #expect(apply(change, by: client, of: other) == .otherCustomer)
                #expect(apply(change, by: client, of: nil) == .otherCustomer)
            }
            #expect(apply(change, by: .customer(other), of: acme) == .illegalRelation)
        }
        #expect(apply(share, by: .account(Self.anna), of: acme) == nil)
        // A bound device stays with the customer of its account.
        #expect(apply(.assign(other), by: .operator, of: acme) == .otherCustomer)
        #expect(apply(.unbind, by: .customer(other), of: acme) == .illegalRelation)
        #expect(apply(.unbind, by: .customer(acme), of: acme) == nil && record.customer == acme)
        #expect(apply(.assign(nil), by: .operator, of: nil) == nil && record.customer == nil)
    }

    @Test("Who changes a device is written as no account can be named, so that an earlier release refuses it")
    func clients() throws {
        for client in [
            DeviceClient.operator, .customer(CustomerID(unchecked: "acme")), .account(Self.anna),
        ] {
            let message = DeviceRelationChange.unbind.message(by: client)
            #expect(try DeviceClient(message) == client)
        }
        let customer = DeviceRelationChange.unbind.message(by: .customer(CustomerID(unchecked: "acme")))
        #expect(!customer.account.isEmpty && AccountID(rawValue: customer.account) == nil)
        for text in ["@", "@@", "a b", "@a/b"] {
            #expect(throws: ApusError.self) { try DeviceClient(.with { $0.account = text }) }
        }
    }

    @Test("A share gives a right and no more, is changed in place, and ends for its guest alone (IV-B10)")
    func sharing() throws {
        var record = Self.record(of: Self.anna)
        #expect(record.right(of: Self.anna) == .own && record.right(of: Self.ben) == nil)
        _ = try record.apply(.invite(DeviceShare(account: Self.ben, control: false)), by: Self.anna, now: 5)
        _ = try record.apply(.accept(Self.ben), by: Self.ben, now: 5)
        #expect(record.right(of: Self.ben) == .view)
        for change in [
            DeviceRelationChange.share(DeviceShare(account: Self.carl, control: true)), .unshare(Self.carl), .unbind,
            .transfer(Self.ben), .invite(DeviceShare(account: Self.carl, control: true)),
        ] {
            Self.fails(.illegalRelation, record, change, by: Self.ben)
            Self.fails(.illegalRelation, record, change, by: AccountID(unchecked: "dora"))
        }
        _ = try record.apply(.share(DeviceShare(account: Self.ben, control: true)), by: Self.anna, now: 5)
        #expect(record.shares == [DeviceShare(account: Self.ben, control: true)])
        // Control that ends is a right that is lost; the same share once more is none.
        let view = DeviceRelationChange.share(DeviceShare(account: Self.ben, control: false))
        #expect(try record.apply(view, by: Self.anna, now: 5) == [Self.ben])
        #expect(try record.apply(view, by: Self.anna, now: 5).isEmpty)
        Self.fails(.boundToThisUser, record, .share(DeviceShare(account: Self.anna, control: true)), by: Self.anna)
        Self.fails(.boundToThisUser, record, .unshare(Self.anna), by: Self.anna)
        // A guest leaves. Once more changes nothing: the answer may have been lost.
        #expect(try record.apply(.unshare(Self.ben), by: Self.ben, now: 5) == [Self.ben])
        #expect(record.shares.isEmpty)
        for client in [Self.ben, Self.anna, AccountID(unchecked: "dora")] {
            let other = client == Self.anna ? Self.ben : client
            #expect(try record.apply(.unshare(other), by: client, now: 5) == [], "\(client) ends what is not shared")
        }
    }

    @Test("What changes nothing is known, so that nobody is notified of it")
    func unchanged() throws {
        var record = Self.record(of: Self.anna)
        let (view, control) = (
            DeviceShare(account: Self.ben, control: false), DeviceShare(account: Self.ben, control: true)
        )
        let changes: [(DeviceRelationChange, AccountID?)] = [
            (.unshare(Self.ben), Self.ben), (.invite(view), Self.anna), (.invite(view), Self.anna),
            (.invite(control), Self.anna), (.unshare(Self.ben), Self.ben), (.invite(view), Self.anna),
            (.accept(Self.ben), Self.ben), (.accept(Self.ben), Self.ben), (.invite(view), Self.anna),
            (.invite(control), Self.anna), (.share(control), nil), (.share(view), nil),
            (.unshare(Self.carl), Self.carl), (.disable(false), nil),
            (.disable(true), nil), (.disable(true), nil), (.assign(nil), nil), (.unshare(Self.ben), Self.anna),
            (.unshare(Self.ben), Self.ben), (.transfer(Self.carl), Self.anna), (.unbind, Self.carl),
            (.bind(Self.anna), nil),
        ]
        for (change, client) in changes {
            let before = record
            let isChanged = record.isChanged(by: change)
            _ = try record.apply(change, by: client, now: 5)
            #expect(isChanged == (record != before), "\(change)")
        }
    }

    @Test("A lost right is remembered until it expires, each by itself")
    func list() {
        var list = WithdrawalList()
        let (cam, bell) = (DeviceID(unchecked: "cam"), DeviceID(unchecked: "bell"))
        list.add([
            DeviceWithdrawal(device: cam, account: Self.anna, expires: 10),
            DeviceWithdrawal(device: cam, account: Self.ben, expires: 20),
        ])
        list.add([DeviceWithdrawal(device: cam, account: Self.anna, expires: 20)])
        list.removeExpired(wallSeconds: 10)
        #expect(list.contains(Self.anna, cam) && list.contains(Self.ben, cam))
        #expect(!list.contains(Self.anna, bell) && !list.contains(Self.carl, cam))
        list.removeExpired(wallSeconds: 20)
        #expect(list == WithdrawalList())
    }

    @Test("A session is a user of the devices that it has used; after as many as it may watch, of all")
    func used() {
        let countMax = SessionConfiguration().subscriptionsMax
        var used = UsedDevices(countMax: countMax)
        let other: Set = [DeviceID(unchecked: "other")]
        for number in 0..<countMax {
            for _ in 0..<2 { used.insert(DeviceID(unchecked: "d\(number)")) }
        }
        #expect(used.isInCommon(with: [DeviceID(unchecked: "d0")]) && !used.isInCommon(with: other))
        used.insert(DeviceID(unchecked: "one-more"))
        #expect(used.isInCommon(with: other))
    }

    @Test("A device is shared with 16 accounts at most (10007)")
    func bound() throws {
        var record = Self.record(of: Self.anna)
        for number in 0..<DeviceRecord.sharesMax {
            let share = DeviceShare(account: AccountID(unchecked: "a\(number)"), control: false)
            _ = try record.apply(.share(share), by: Self.anna, now: 5)
        }
        Self.fails(.overloaded, record, .share(DeviceShare(account: Self.ben, control: false)), by: Self.anna)
    }

    @Test("Who gives a device away, and all guests, lose their rights; the device needs a new token (IV-B10)")
    func leaving() throws {
        for change in [DeviceRelationChange.unbind, .transfer(Self.carl)] {
            var record = Self.record(of: Self.anna)
            for guest in [Self.ben, Self.carl] {
                _ = try record.apply(.share(DeviceShare(account: guest, control: true)), by: nil, now: 5)
            }
            let lost = try record.apply(change, by: Self.anna, now: 7)
            #expect(record.shares.isEmpty && record.right(of: Self.anna) == nil && record.tokensAfter == 8)
            if change == .unbind {
                #expect(lost == [Self.anna, Self.ben, Self.carl] && record.account == nil)
                Self.fails(.illegalRelation, record, .transfer(Self.carl), by: nil)
                Self.fails(.illegalRelation, record, .share(DeviceShare(account: Self.ben, control: true)), by: nil)
            } else {
                #expect(lost == [Self.anna, Self.ben] && record.right(of: Self.carl) == .own)
                Self.fails(.boundToThisUser, record, .transfer(Self.carl), by: Self.carl)
            }
        }
    }

    @Test("A share of an account is an invitation: it gives no right before the other account has accepted (IV-B10)")
    func invitations() throws {
        var record = Self.record(of: Self.anna)
        let share = DeviceShare(account: Self.ben, control: true)
        // Also as a node of an earlier release asks for it.
        for change in [DeviceRelationChange.invite(share), .share(share)] {
            #expect(try record.apply(change, by: Self.anna, now: 5).isEmpty)
            #expect(record.right(of: Self.ben) == nil && record.shares.isEmpty && record.invitations == [share])
        }
        Self.fails(.illegalRelation, record, .accept(Self.ben), by: Self.anna)
        Self.fails(.illegalRelation, record, .accept(Self.carl), by: Self.carl)
        _ = try record.apply(.accept(Self.ben), by: Self.ben, now: 5)
        #expect(record.right(of: Self.ben) == .control && record.invitations.isEmpty)
        _ = try record.apply(.accept(Self.ben), by: Self.ben, now: 5)
        #expect(record.shares == [share], "a repeated request succeeds")
        // Who has accepted a share has accepted its changes.
        let view = DeviceShare(account: Self.ben, control: false)
        #expect(try record.apply(.invite(view), by: Self.anna, now: 5) == [Self.ben])
        #expect(record.shares == [view] && record.invitations.isEmpty)
    }

    @Test("An invitation ends when it is declined, withdrawn, or the device is handed over, and no right is lost")
    func endsOfInvitations() throws {
        let share = DeviceShare(account: Self.ben, control: true)
        for (change, client) in [
            (DeviceRelationChange.unshare(Self.ben), Self.ben), (.unshare(Self.ben), Self.anna), (.unbind, Self.anna),
            (.transfer(Self.carl), Self.anna),
        ] {
            var record = Self.record(of: Self.anna)
            _ = try record.apply(.invite(share), by: Self.anna, now: 5)
            #expect(try !record.apply(change, by: client, now: 5).contains(Self.ben))
            #expect(record.invitations.isEmpty)
            Self.fails(.illegalRelation, record, .accept(Self.ben), by: Self.ben)
        }
    }

    @Test("An operator, or the integrator of both accounts, shares without asking them")
    func withoutConsent() throws {
        let acme = CustomerID(unchecked: "acme")
        let share = DeviceShare(account: Self.ben, control: false)
        for client in [DeviceClient.operator, .customer(acme)] {
            var record = Self.record(of: Self.anna)
            record.customer = acme
            record.invitations = [DeviceShare(account: Self.ben, control: true)]
            _ = try record.apply(.share(share), by: client, customer: acme, now: 5)
            #expect(record.shares == [share] && record.invitations.isEmpty)
        }
    }

    @Test("An invitation and its acceptance are of one customer (8024), and count as a share does (10007)")
    func boundsOfInvitations() throws {
        var record = Self.record(of: Self.anna)
        let share = DeviceShare(account: Self.ben, control: false)
        let other = CustomerID(unchecked: "other")
        #expect(throws: ApusError(.otherCustomer)) {
            _ = try record.apply(.invite(share), by: .account(Self.anna), customer: other, now: 5)
        }
        _ = try record.apply(.invite(share), by: Self.anna, now: 5)
        #expect(throws: ApusError(.otherCustomer)) {
            _ = try record.apply(.accept(Self.ben), by: .account(Self.ben), customer: other, now: 5)
        }
        for number in 1..<DeviceRecord.sharesMax {
            let one = DeviceShare(account: AccountID(unchecked: "a\(number)"), control: false)
            _ = try record.apply(number % 2 == 0 ? .share(one) : .invite(one), by: nil, now: 5)
        }
        Self.fails(.overloaded, record, .invite(DeviceShare(account: Self.carl, control: false)), by: Self.anna)
        Self.fails(.overloaded, record, .share(DeviceShare(account: Self.carl, control: false)), by: nil)
        _ = try record.apply(.accept(Self.ben), by: Self.ben, now: 5)
    }

    @Test("Between nodes an account's share is an invitation, and an operator's is not")
    func messagesOfInvitations() throws {
        let share = DeviceShare(account: Self.ben, control: true)
        let asked = DeviceRelationChange.invite(share).message(by: .account(Self.anna))
        #expect(try DeviceRelationChange(asked) == .invite(share))
        let shared = DeviceRelationChange.share(share).message(by: .operator)
        #expect(try DeviceRelationChange(shared) == .share(share))
        let accepted = DeviceRelationChange.accept(Self.ben).message(by: .account(Self.ben))
        #expect(try DeviceRelationChange(accepted) == .accept(Self.ben))
    }

    @Test("A device is handed over without its data unless told otherwise; each time counts, whatever the clock says")
    func data() throws {
        var record = Self.record(of: Self.anna)
        _ = try record.apply(.transfer(Self.ben), by: Self.anna, now: 100)
        #expect(record.dataSince == 100_000)
        // Twice in a second, and with a clock that was set back.
        _ = try record.apply(.transfer(Self.anna), by: Self.ben, now: 100)
        #expect(record.dataSince == 100_001)
        _ = try record.apply(.unbind, by: Self.anna, now: 50)
        #expect(record.dataSince == 100_002)
        // A repeated request of an operator hands over nothing more.
        _ = try record.apply(.unbind, by: nil, now: 200)
        #expect(record.dataSince == 100_002)
        _ = try record.apply(.bind(Self.carl), by: nil, now: 300)
        _ = try record.apply(.handOver(to: Self.anna, keepsData: true), by: Self.carl, now: 400)
        _ = try record.apply(.handOver(to: nil, keepsData: true), by: Self.anna, now: 500)
        #expect(record.dataSince == 100_002 && record.account == nil)
    }

    @Test(
        "The choice is in the message between nodes; an earlier release says nothing, and wipes",
        arguments: [true, false])
    func keptData(keepsData: Bool) throws {
        for account in [nil, Self.ben] {
            let change = DeviceRelationChange.handOver(to: account, keepsData: keepsData)
            let message = change.message(by: .account(Self.anna))
            #expect(try DeviceRelationChange(message) == change && message.keepData == keepsData)
        }
        #expect(try DeviceRelationChange(.with { $0.change = .unbind }) == .unbind)
    }
}

extension DeviceRecord {
    /// As an account, or an operator, where nobody has a customer.
    fileprivate mutating func apply(
        _ change: DeviceRelationChange, by client: AccountID?, now: Int64
    ) throws(ApusError) -> [AccountID] {
        try apply(change, by: client.map { .account($0) } ?? .operator, customer: nil, now: now)
    }
}
