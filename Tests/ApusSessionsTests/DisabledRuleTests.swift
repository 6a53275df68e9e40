import ApusCore
import ApusSessions
import ApusStorage
import ApusTestKit
import ApusWire
import Testing

@Suite("Devices that are disabled (20011, IV-B10, IV-C16)")
struct DisabledRuleTests {
    private static let cam = DeviceID(unchecked: "cam")
    private static let (anna, ben, carl) = (
        AccountID(unchecked: "anna"), AccountID(unchecked: "ben"), AccountID(unchecked: "carl")
    )
    private static let acme = CustomerID(unchecked: "acme")
    private static let admin = Session(
        id: "-", role: .admin, access: AccessID(unchecked: "admin"), account: AccountID(unchecked: "operators"),
        device: nil, sinceMilliseconds: 0, token: TokenMark(tag: 0, issuedAt: 0, expires: .max))

    /// Anna's, which Ben may control; of no customer.
    private static var shared: DeviceRecord {
        var record = DeviceRecord(device: cam, account: anna, epoch: 1)
        record.shares = [DeviceShare(account: ben, control: true)]
        return record
    }

    // MARK: - Rules

    @Test("An operator and the device's customer disable a device and enable it; accounts and others do not (IV-B10)")
    func whoMay() throws {
        for isDisabled in [true, false] {
            var record = Self.shared
            (record.customer, record.isDisabled) = (Self.acme, !isDisabled)
            for client in [
                DeviceClient.account(Self.anna), .account(Self.ben), .account(Self.carl),
                .customer(CustomerID(unchecked: "other")),
            ] {
                var refused = record
                #expect(
                    performing: {
                        _ = try refused.apply(.disable(isDisabled), by: client, customer: nil, now: 5)
                    }, throws: { ($0 as? ApusError)?.code == .illegalRelation })
                #expect(refused == record, "\(client) changed the device")
            }
            for client in [DeviceClient.operator, .customer(Self.acme)] {
                var changed = record
                _ = try changed.apply(.disable(isDisabled), by: client, customer: nil, now: 5)
                #expect(changed.isDisabled == isDisabled)
                changed.isDisabled = record.isDisabled
                #expect(changed == record, "more than that was changed")
            }
        }
    }

    @Test("All who have a right are looked at again when a device is disabled, and nobody when it is enabled (IV-C16)")
    func lost() throws {
        var record = Self.shared
        try record.checkEnabled()
        #expect(try record.apply(.disable(true), by: .operator, customer: nil, now: 5) == [Self.anna, Self.ben])
        #expect(record.right(of: Self.anna) == .own && record.right(of: Self.ben) == .control)
        #expect(throws: ApusError(.deviceDisabled)) { try record.checkEnabled() }
        #expect(try record.apply(.disable(true), by: .operator, customer: nil, now: 6) == [])
        #expect(try record.apply(.disable(false), by: .operator, customer: nil, now: 7) == [])
        #expect(record == Self.shared)
        var unbound = DeviceRecord(device: Self.cam, epoch: 1)
        #expect(try unbound.apply(.disable(true), by: .operator, customer: nil, now: 5) == [] && unbound.isDisabled)
    }

    @Test("No change of its accounts or of its customer enables a device (IV-B10, IV-C16)")
    func staysDisabled() throws {
        var record = Self.shared
        record.isDisabled = true
        let changes: [DeviceRelationChange] = [
            .share(DeviceShare(account: Self.carl, control: false)), .unshare(Self.carl), .transfer(Self.ben), .unbind,
            .assign(nil), .bind(Self.anna),
        ]
        for change in changes {
            _ = try record.apply(change, by: .operator, customer: nil, now: 5)
            #expect(record.isDisabled, "\(change) has enabled the device")
        }
        #expect(record.account == Self.anna && record.shares.isEmpty)
    }

    @Test("The change has numbers that no earlier release knows, so that it is refused there (IV-C16)")
    func message() throws {
        for (isDisabled, change, number) in [(true, SessionRelate.Change.disable, 7), (false, .enable, 8)] {
            let message = DeviceRelationChange.disable(isDisabled).message(by: .customer(Self.acme))
            #expect(message.change == change && message.change.rawValue == number && message.other.isEmpty)
            #expect(try DeviceClient(message) == .customer(Self.acme))
        }
    }

    @Test("A node notes 4096 devices that are disabled, and one more takes the place of another (IV-C16)")
    func bound() {
        var disabled = DisabledDevices()
        func device(_ number: Int) -> DeviceID { DeviceID(unchecked: "d\(number)") }
        for number in 0..<DisabledDevices.countMax {
            for _ in 0..<2 { disabled.insert(device(number)) }
        }
        let all = 0...DisabledDevices.countMax
        #expect(all.count { disabled.contains(device($0)) } == DisabledDevices.countMax)
        disabled.insert(device(DisabledDevices.countMax))
        #expect(all.count { disabled.contains(device($0)) } == DisabledDevices.countMax)
        #expect(disabled.contains(device(DisabledDevices.countMax)))
        disabled.remove(device(DisabledDevices.countMax))
        #expect(!disabled.contains(device(DisabledDevices.countMax)))
    }

    // MARK: - Records

    @Test(
        "A device stays disabled in the records, is bound to no token, and its accounts cannot prevent it (IV-C16)",
        arguments: SessionRecordsTests.Kind.allCases)
    func records(kind: SessionRecordsTests.Kind) async throws {
        let folder = try SessionRecordsTests.Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store, writer: "n1#1")
        func relate(_ change: DeviceRelationChange, now: Int64 = 100) async throws(ApusError) -> DeviceRecord {
            try await records.relate(Self.cam, epoch: 4, change, by: .operator, now: now, keepSeconds: 60).record
        }
        await #expect(throws: ApusError(.targetUnknown, "no such device")) { try await relate(.disable(true)) }
        _ = try await relate(.bind(Self.anna))
        // The account fills the record of its lost rights.
        for number in 0..<SessionRecords.withdrawnMax {
            let other = AccountID(unchecked: "a\(number)")
            _ = try await relate(.share(DeviceShare(account: other, control: false)))
            _ = try await relate(.unshare(other))
        }
        let full = UInt64(SessionRecords.withdrawnMax)
        #expect(try await records.withdrawals(after: 0)?.number == full)
        await #expect(throws: ApusError.self) { try await relate(.unbind) }

        let disabled = try await relate(.disable(true))
        #expect(disabled.isDisabled && disabled.account == Self.anna)
        #expect(try await records.record(of: Self.cam) == disabled)
        #expect(try await records.records(of: Self.anna, after: nil, limit: 9) == [disabled])
        let read = try await records.withdrawals(after: full)
        #expect(read?.lost == [DeviceWithdrawal(device: Self.cam, account: Self.anna, expires: 160)])
        // What changes nothing writes nothing, and no account has lost a right when it is enabled.
        _ = try await relate(.disable(true))
        #expect(try await relate(.disable(false)).isDisabled == false)
        #expect(try await records.withdrawals(after: full + 1) == nil)
        // Again and again is no further lost right.
        for round in 1...Int64(20) {
            _ = try await relate(.disable(true), now: 100 + round)
            _ = try await relate(.disable(false), now: 100 + round)
        }
        _ = try await relate(.disable(true))

        let unbound = try await relate(.unbind, now: 300)
        #expect(unbound.isDisabled && unbound.account == nil)
        await #expect(throws: ApusError(.deviceDisabled)) {
            try await records.bind(DeviceRecord(device: Self.cam, account: Self.anna, epoch: 4))
        }
        #expect(try await relate(.bind(Self.ben), now: 300).isDisabled)
        #expect(try await relate(.disable(false), now: 300).isDisabled == false)
        await store.close()
    }

    // MARK: - Sessions

    @Test("A disabled device is signed out and refused, also with its ticket, and returns when it is enabled (IV-C16)")
    func sessions() async throws {
        try await LoneNode.with { node in
            let camera = try await node.open(.device, "cam", instance: 1)
            let app = try await node.open(.app, "app", instance: 2)
            func inspect(_ session: Session, control: Bool = false) async -> ErrorCode? {
                await code {
                    _ = try await node.service.inspect(
                        LoneNode.camera, for: session, subscribe: false, control: control
                    ).get()
                }
            }
            var foreign = app.session
            foreign.account = AccountID(unchecked: "other")
            let grant = node.service.grant(app.session, device: LoneNode.camera)
            #expect(await inspect(app.session) == nil)
            #expect(node.service.isGranted(grant, app.session, device: LoneNode.camera))

            try await node.service.relate(LoneNode.camera, .disable(true), for: Self.admin)
            for isControl in [false, true] {
                #expect(await inspect(app.session, control: isControl) == .deviceDisabled)
                #expect(await inspect(foreign, control: isControl) == .illegalRelation)
            }
            try await eventually("both are signed out") {
                camera.link.ended == [.deviceDisabled] && app.link.ended == [.linkLost]
            }
            #expect(!node.service.isGranted(grant, app.session, device: LoneNode.camera))
            #expect(await code { _ = try await node.open(.device, "cam", instance: 1) } == .deviceDisabled)
            #expect(await code { _ = try await node.signIn(camera, RecordedLink()) } == .deviceDisabled)
            let resumed = try node.resume(camera, RecordedLink())
            #expect(resumed == nil, "its ticket was accepted before its record was read")
            #expect(await code { try await node.service.checkDevice(camera.session) } == .deviceDisabled)
            foreign = camera.session
            foreign.account = AccountID(unchecked: "other")
            #expect(await code { try await node.service.checkDevice(foreign) } == .boundToOtherUser)
            // The ticket of an app is accepted at once.
            #expect(try node.resume(app, RecordedLink()) != nil)

            // The next owner reads it in the records.
            node.changeOwner(epoch: 2)
            try await eventually("the next owner refuses the app") { await inspect(app.session) == .deviceDisabled }
            try await eventually("the next owner refuses the device") {
                await code { _ = try await node.open(.device, "cam", instance: 1) } == .deviceDisabled
            }

            try await node.service.relate(LoneNode.camera, .disable(false), for: Self.admin)
            let link = RecordedLink()
            _ = try await node.signIn(camera, link)
            try await eventually("the owner confirms it") { link.confirmedCount == 1 }
            #expect(await inspect(app.session, control: true) == nil && link.ended.isEmpty)
        }
    }
}
