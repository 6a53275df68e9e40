import ApusClient
import ApusContract
import ApusCore
import Foundation
import SwiftProtobuf
import Testing

@Suite("Calls across nodes (CALL-4 to CALL-9, CALL-15)", .serialized, .timeLimit(.minutes(3)))
struct CallTests {
    private static let bell = DeviceID(unchecked: "bell")

    /// The cluster of the tests that end no node. Each of them has an account and devices of its own.
    private static func cluster() throws -> Cluster { try SharedCluster.cluster(basePort: 24_200) }

    @Test(
        "An app calls a device at another node: it rings, accepts, connects, and the hang-up reaches the peer (CALL-7)")
    func oneToOne() async throws {
        let cluster = try Self.cluster()
        let (bell, app) = try await CallClient.pair(cluster)
        defer { for client in [bell, app] { client.close() } }
        let extra = #"{"bizType":"screen_ipc","channelType":2,"category":"sp_dpsxj","keepConnect":false}"#
        let call = try await app.start([.device(Self.bell)], extra: extra)
        #expect(call.isOutgoing && !call.isEnded)
        let ring = try await bell.next(call.id) { if case .ring = $0.stage { true } else { false } }
        #expect(ring.extra == extra && ring.peer == .account(AccountID(unchecked: "local")) && !ring.isOutgoing)
        _ = try await app.next(call.id) { $0.stage == .ringing }
        #expect(try await bell.session.acceptCall(call.id).isAccepted)
        let accepted = try await app.next(call.id) { $0.stage == .accepted }
        #expect(accepted.peer == .device(Self.bell))
        for client in [bell, app] { try await client.session.reportCallConnected(call.id) }
        #expect(try await app.session.reportCallConnected(call.id).isConnected)
        try await app.session.hangUpCall(call.id)
        #expect(try await bell.end(call.id)?.code == .peerHungUp)
        // Whoever comes too late learns how it has ended, and others nothing.
        #expect(try await bell.session.acceptCall(call.id).error?.code == .peerHungUp)
        let other = try await CallClient(cluster, 3, access: "other", account: "other").ready()
        defer { other.close() }
        await fails(.illegalRelation) { () throws(ApusError) in try await other.session.acceptCall(call.id) }
        await fails(.callUnknown) { () throws(ApusError) in
            try await other.session.acceptCall("000-" + String(repeating: "0", count: 32))
        }
        await fails(.callUnknown) { () throws(ApusError) in try await other.session.acceptCall("x") }
        let list = try await eventually { () throws(ApusError) in
            let list = try await app.session.ask(ClientListCallsRequest())
            guard !list.calls.isEmpty else { throw ApusError(.targetUnknown) }
            return list
        }
        let record = try #require(list.calls.first)
        #expect(record.call == call.id && record.reason == "hung_up" && record.winner.device == "bell")
        #expect(record.startedMs <= record.rangMs && record.rangMs <= record.acceptedMs)
        #expect(record.acceptedMs <= record.connectedMs && record.connectedMs <= record.endedMs)
        #expect(try await other.session.ask(ClientListCallsRequest()).calls.isEmpty)
        await fails(.targetUnknown) { () throws(ApusError) in
            _ = try await other.session.ask(ClientListCallsRequest.with { $0.device = "bell" })
        }
        // Temporary access to a device is none to the calls of its account.
        let token = try cluster.token("--role", "app", "--access", "courier", "--device", "bell")
        let courier = try cluster.session(node: 3, token: token)
        defer { courier.close() }
        for request in [ClientListCallsRequest(), .with { $0.account = "local" }] {
            await fails(.notAllowed) { () throws(ApusError) in
                _ = try await courier.repeating(until: .now() + .seconds(5)) { _ throws(ApusError) in
                    try await courier.ask(request)
                }
            }
        }
        await fails(.notAllowed) { () throws(ApusError) in _ = try await courier.startCall(to: [.device(Self.bell)]) }
        do {
            for try await notice in courier.calls() { Issue.record("a guest is called: \(notice)") }
        } catch { #expect((error as? ApusError)?.code == .notAllowed, "\(error)") }
    }

    @Test("An app asks whether a device has two-way video, also while it is away; another answer is −2502 (CALL-1)")
    func ability() async throws {
        let cluster = try Self.cluster()
        let (bell, app) = try await CallClient.pair(cluster, device: "able-bell", account: "able")
        defer { app.close() }
        let device = DeviceID(unchecked: "able-bell")
        #expect(try await !app.session.hasTwoWayVideo(device))
        try await bell.session.reportTwoWayVideo(true)
        #expect(try await app.session.hasTwoWayVideo(device))
        bell.close()
        #expect(try await app.session.hasTwoWayVideo(device))
        let again = try await CallClient(cluster, 3, device: "able-bell", account: "able").ready()
        defer { again.close() }
        try await again.session.reportTwoWayVideo(false)
        #expect(try await !app.session.hasTwoWayVideo(device))
        try await again.session.reportProperty(path: "ProReadonly._twoWayVideo", json: #"{"stVal":"perhaps"}"#)
        await fails(.callResponseInvalid) { () throws(ApusError) in _ = try await app.session.hasTwoWayVideo(device) }
        await fails(.targetUnknown) { () throws(ApusError) in
            _ = try await app.session.hasTwoWayVideo(DeviceID(unchecked: "nobody"))
        }
    }

    @Test("Devices whose ids differ in the last of 63 bytes are two parties (CALL-5)")
    func longNames() async throws {
        let cluster = try Self.cluster()
        let names = ["a", "b"].map { String(repeating: "d", count: 62) + $0 }
        let devices = try names.map { try CallClient(cluster, 1, device: $0, account: "long") }
        let app = try await CallClient(cluster, 2, access: "phone", account: "long").ready()
        defer { for client in devices + [app] { client.close() } }
        for device in devices { _ = try await device.ready() }
        let call = try await app.start([.device(DeviceID(unchecked: names[1]))]).id
        _ = try await devices[1].next(call) { if case .ring = $0.stage { true } else { false } }
        #expect(devices[0].notices(of: call).isEmpty)
    }

    @Test("With the accept both sides receive access to the relays, for a direct connection (CALL-8, D8)")
    func relayAccess() async throws {
        let cluster = try Self.cluster()
        let (bell, app) = try await CallClient.pair(cluster, device: "relay-bell", account: "relay")
        defer { for client in [bell, app] { client.close() } }
        let call = try await app.start([.device(DeviceID(unchecked: "relay-bell"))], type: .oneToMany)
        #expect(call.type == .oneToMany)
        let ring = try await bell.next(call.id) { if case .ring = $0.stage { true } else { false } }
        #expect(ring.relay == nil && ring.type == .oneToMany)
        try await bell.session.acceptCall(call.id)
        var users: Set<String> = []
        for client in [bell, app] {
            let relay = try #require(try await client.next(call.id) { $0.stage == .accepted }.relay)
            users.insert(relay.username)
            #expect(relay.lifetime > .seconds(60))
            let port = try #require(relay.urls.first { $0.hasPrefix("turn:") }?.split(separator: ":").last?.prefix(5))
            let check = try Cluster.run([
                "relay", "check", "--server", "127.0.0.1:\(port)", "--username", relay.username, "--password",
                relay.credential,
            ])
            #expect(check.status == 0, "\(check.all)")
        }
        #expect(users.count == 2, "each side is a user of its own")
        try await app.session.hangUpCall(call.id)
        #expect(try await bell.end(call.id)?.code == .peerHungUp)
    }

    @Test("A guest that loses its right while a call rings is not connected: 8003, and the call ends (IV-B10)")
    func lostRight() async throws {
        let cluster = try Self.cluster()
        let id = DeviceID(unchecked: "right-bell")
        let bell = try await CallClient(cluster, 1, device: "right-bell", account: "right").ready()
        let owner = try await CallClient(cluster, 2, access: "phone", account: "right").ready()
        let guest = try await CallClient(cluster, 3, access: "guest", account: "right-guests").ready()
        defer { for client in [bell, owner, guest] { client.close() } }
        let guests = AccountID(unchecked: "right-guests")
        for isOutgoing in [true, false] {
            try await owner.session.share(id, with: guests, control: true, acceptedBy: guest.session)
            let (caller, called) = isOutgoing ? (guest, bell) : (bell, guest)
            let call = try await caller.start([isOutgoing ? .device(id) : .account(guests)]).id
            _ = try await called.next(call) { if case .ring = $0.stage { true } else { false } }
            try await owner.session.unshare(id, with: guests)
            await fails(.illegalRelation) { () throws(ApusError) in
                _ = try await called.session.repeating(until: .now() + .seconds(8)) { _ throws(ApusError) in
                    try await called.session.acceptCall(call)
                }
            }
            #expect(try await caller.end(call)?.code == .callRejected)
        }
    }

    @Test("A call of an own device rings though one of another account's does, whose caller receives −2511 (CALL-5)")
    func guestDevice() async throws {
        let cluster = try Self.cluster()
        let own = AccountID(unchecked: "first")
        let bell = try await CallClient(cluster, 1, device: "first-bell", account: "first").ready()
        let other = try await CallClient(cluster, 2, device: "first-other", account: "first-others").ready()
        let app = try await CallClient(cluster, 3, access: "phone", account: "first").ready()
        let owner = try await CallClient(cluster, 2, access: "phone", account: "first-others").ready()
        defer { for client in [bell, other, app, owner] { client.close() } }
        try await owner.session.share(
            DeviceID(unchecked: "first-other"), with: own, control: true, acceptedBy: app.session)
        var calls: [String] = []
        for device in [other, bell] {
            let call = try await device.start([.account(own)]).id
            _ = try await app.next(call) { if case .ring = $0.stage { true } else { false } }
            calls.append(call)
        }
        #expect(try await other.end(calls[0])?.code == .calleeBusy)
        try await app.session.acceptCall(calls[1])
        _ = try await bell.next(calls[1]) { $0.stage == .accepted }
        // Never the other way round, also while it only rings.
        let late = try await other.start([.account(own)]).id
        #expect(try await other.end(late)?.code == .calleeBusy)
        try await app.session.hangUpCall(calls[1])
        #expect(try await bell.end(calls[1])?.code == .peerHungUp)
    }

    @Test("A party that places calls without end is refused (10007), and the calls of others are not")
    func flood() async throws {
        let cluster = try Self.cluster()
        let bell = try await CallClient(cluster, 1, device: "flood-bell", account: "flood").ready()
        let other = try await CallClient(cluster, 2, device: "flood-other", account: "flood").ready()
        let app = try await CallClient(cluster, 2, access: "phone", account: "flood").ready()
        let cam = try await CallClient(cluster, 2, device: "flood-cam", account: "flood").ready()
        defer { for client in [bell, other, app, cam] { client.close() } }
        var refused = 0
        for _ in 0..<100 {
            do throws(ApusError) {
                let call = try await app.session.startCall(to: [.device(DeviceID(unchecked: "flood-bell"))])
                try await app.session.hangUpCall(call.id)
            } catch {
                #expect(error.code == .overloaded, "\(error)")
                refused += 1
            }
        }
        #expect((38...60).contains(refused))
        let call = try await cam.start([.device(DeviceID(unchecked: "flood-other"))])
        _ = try await other.next(call.id) { if case .ring = $0.stage { true } else { false } }
    }

    @Test("Reject, cancel, busy, time-out and refused calls have their numbers on both sides (CALL-5, CALL-6, CALL-8)")
    func numbers() async throws {
        let cluster = try Self.cluster()
        let id = DeviceID(unchecked: "numbers-bell")
        let (bell, app) = try await CallClient.pair(cluster, device: "numbers-bell", account: "numbers")
        let cam = try await CallClient(cluster, 3, device: "numbers-cam", account: "numbers").ready()
        defer { for client in [bell, app, cam] { client.close() } }
        let rejected = try await app.ring(bell)
        try await bell.session.rejectCall(rejected)
        #expect(try await app.end(rejected)?.code == .callRejected)

        let cancelled = try await app.ring(bell)
        try await app.session.hangUpCall(cancelled)
        #expect(try await bell.end(cancelled)?.code == .callCancelled)
        #expect(try await bell.session.acceptCall(cancelled).error?.code == .callCancelled)

        let first = try await app.ring(bell)
        let busy = try await cam.start([.device(id)])
        #expect(try await cam.end(busy.id)?.code == .calleeBusy)
        let second = try await app.start([.device(DeviceID(unchecked: "numbers-cam"))])
        #expect(try await app.end(second.id)?.code == .onCalling)
        // A call that was missed is reported, and does not ring (CALL-9).
        for (client, missed) in [(bell, busy.id), (cam, second.id)] {
            let isRung = client.notices(of: missed).contains { if case .ring = $0.stage { true } else { false } }
            #expect(!isRung, "a busy party was rung")
        }
        #expect(try await bell.end(busy.id)?.code == .onCalling)
        try await app.session.hangUpCall(first)
        _ = try await bell.end(first)

        let silent = try await app.start([.device(id)], timeout: .seconds(5))
        let start = ContinuousClock.now
        #expect(try await app.end(silent.id)?.code == .callNotAnswered)
        #expect(try await bell.end(silent.id)?.code == .callTimedOut)
        #expect((4.0...7.0).contains((ContinuousClock.now - start) / .seconds(1)))

        for (code, target, timeout, extra) in [
            (ErrorCode.callRequestFailed, "nobody", 30, ""), (.callParametersInvalid, "numbers-bell", 4, ""),
            (.callParametersInvalid, "numbers-bell", 121, ""), (.callParametersInvalid, "numbers-bell", 30, "[]"),
            (.callParametersInvalid, "numbers-bell", 30, #"{"a":""# + String(repeating: "x", count: 4096) + #""}"#),
        ] {
            await fails(code) { () throws(ApusError) in
                _ = try await app.session.startCall(
                    to: [.device(DeviceID(unchecked: target))], timeout: .seconds(timeout), extra: extra)
            }
        }
        await fails(.callParametersInvalid) { () throws(ApusError) in _ = try await app.session.startCall(to: []) }
        let deaf = try cluster.session(
            node: 1, token: try cluster.token("--role", "app", "--access", "deaf", "--account", "numbers"))
        defer { deaf.close() }
        try await eventually { () throws(ApusError) in _ = try await deaf.ask(ClientListCallsRequest()) }
        await fails(.unavailable) { () throws(ApusError) in
            _ = try await deaf.startCall(to: [.device(id)])
        }
        let foreign = try await CallClient(cluster, 2, access: "other", account: "numbers-other").ready()
        defer { foreign.close() }
        await fails(.illegalRelation) { () throws(ApusError) in
            _ = try await foreign.session.startCall(to: [.device(id)])
        }
        cam.close()
        try await eventually { () throws(ApusError) in
            do throws(ApusError) {
                let left = try await app.session.startCall(to: [.device(DeviceID(unchecked: "numbers-cam"))])
                try await app.session.hangUpCall(left.id)
                throw ApusError(.versionConflict, "the connection is still known")
            } catch {
                guard error.code == .targetOffline else { throw error }
            }
        }
    }

    @Test("A device calls all apps of its account: one wins, and the ringing stops at the others (CALL-4)")
    func forked() async throws {
        let cluster = try Self.cluster()
        let bell = try await CallClient(cluster, 1, device: "forked-bell", account: "forked").ready()
        let apps = try (1...5).map { try CallClient(cluster, $0 % 3 + 1, access: "app\($0)", account: "forked") }
        defer { for client in apps + [bell] { client.close() } }
        for app in apps { _ = try await app.ready() }
        for round in 0..<5 {
            let call = try await bell.start([], type: .oneToMany)
            for app in apps { _ = try await app.next(call.id) { if case .ring = $0.stage { true } else { false } } }
            let wins = await withTaskGroup(of: Int.self) { group in
                for app in apps {
                    group.addTask { (try? await app.session.acceptCall(call.id))?.isAccepted ?? false ? 1 : 0 }
                }
                return await group.reduce(0, +)
            }
            #expect(wins == 1, "\(wins) apps have won in round \(round)")
            _ = try await bell.next(call.id) { $0.stage == .accepted }
            var ends = 0
            for app in apps where try await app.endIfAny(call.id)?.code == .answeredByOthers { ends += 1 }
            #expect(ends == 4)
            try await bell.session.hangUpCall(call.id)
            var hungUp = 0
            for app in apps where try await app.end(call.id)?.code == .peerHungUp { hungUp += 1 }
            #expect(hungUp == 1)
        }
    }

    @Test("A call goes on in whatever state it was when the node of its owner is killed, and ends as it should")
    func kills() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_680)
        defer { cluster.down() }
        // The owner of the call is that of the device's shard.
        let why = try cluster.run("why", "bell", "--json")
        let owner = try #require((1...3).first { why.output.contains("\"owner\":\"n\($0)\"") }, "\(why.all)")
        let others = (1...3).filter { $0 != owner }
        let bell = try await CallClient(cluster, others[0], device: "bell").ready()
        let app = try await CallClient(cluster, others[1], access: "phone").ready()
        defer { for client in [bell, app] { client.close() } }
        let ringing = try await app.ring(bell)
        #expect(try cluster.run("cluster", "kill", "\(owner)").status == 0)
        let start = ContinuousClock.now
        #expect(try await bell.session.acceptCall(ringing).isAccepted)
        _ = try await app.next(ringing) { $0.stage == .accepted }
        #expect(ContinuousClock.now - start < .seconds(2))
        for client in [bell, app] { try await client.session.reportCallConnected(ringing) }
        #expect(try cluster.run("cluster", "restart", "\(owner)").status == 0)
        try await Task.sleep(for: .seconds(2))
        // The call is at one of the two nodes that ran on.
        let next = try cluster.run("why", "bell", "--json")
        let second = try #require((1...3).first { next.output.contains("\"owner\":\"n\($0)\"") }, "\(next.all)")
        #expect(try cluster.run("cluster", "kill", "\(second)").status == 0)
        try await eventually { () throws(ApusError) in try await app.session.hangUpCall(ringing) }
        #expect(try await bell.end(ringing)?.code == .peerHungUp)
        for client in [bell, app] {
            let stages = client.notices(of: ringing).map(\.stage)
            let isOnce = stages.indices.allSatisfy { index in !stages[..<index].contains(stages[index]) }
            #expect(isOnce, "a notice came twice: \(stages)")
        }
        // The parties are free again, and a call that nobody ends has its time-out at the next owner.
        let last = try await eventually { () throws(ApusError) in
            try await app.session.startCall(to: [.device(Self.bell)], timeout: .seconds(5))
        }
        #expect(try await app.end(last.id)?.code == .callNotAnswered)
    }
}
