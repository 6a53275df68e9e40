import ApusContract
import ApusCore
import ApusSessions
import ApusTestKit
import Testing

@Suite("Sessions of a node that owns all identities (D6)")
struct SessionServiceTests {
    @Test("An app that left frees its place among those that hear of a device")
    func subscriptionEnds() async throws {
        var configuration = SessionConfiguration()
        configuration.presence.subscribersMax = 1
        try await LoneNode.with(configuration) { node in
            _ = try await node.open(.device, "cam", instance: 1)
            for number in UInt64(2)...4 {
                let app = try await node.open(.app, "app-\(number)", instance: number)
                try await eventually("app \(number) hears of the device") {
                    (try? await node.service.inspect(LoneNode.camera, for: app.session, subscribe: true).get()) != nil
                }
                node.service.close(app.session, link: app.link)
            }
        }
    }

    @Test("A token for one use is for the client that used it first, whose answer may be lost (IV-A3)")
    func forOneUse() async throws {
        try await LoneNode.with { node in
            let first = try await node.open(.app, "guest", instance: 7, isForOneUse: true)
            _ = try await node.open(.app, "guest", instance: 7, isForOneUse: true)
            for instance: UInt64 in [8, 0] {
                await #expect(throws: ApusError(.tokenInvalid)) {
                    try await node.open(.app, "guest", instance: instance, isForOneUse: true)
                }
            }
            #expect(try node.resume(first, RecordedLink()) != nil)
            // A client that cannot name itself uses it once.
            _ = try await node.open(.app, "nameless", instance: 0, isForOneUse: true)
            await #expect(throws: ApusError(.tokenInvalid)) {
                try await node.open(.app, "nameless", instance: 0, isForOneUse: true)
            }
        }
    }

    @Test("A superseded client that comes back before its socket is closed is not confirmed (IV-A5)")
    func kickedAndResumed() async throws {
        try await LoneNode.with { node in
            let older = try await node.open(.device, "cam", instance: 1)
            let newer = try await node.open(.device, "cam", instance: 2)
            try await eventually("the older one is kicked") { older.link.ended.contains(.kicked) }
            let again = RecordedLink()
            let resumed = try #require(try node.resume(older, again))
            #expect(!resumed.isConfirmed)
            try await eventually("it is refused") { again.ended == [.kicked] }
            #expect(again.confirmedCount == 0 && newer.link.ended.isEmpty)
        }
    }

    @Test("A client that comes back with its ticket is confirmed by the owner, and its other socket stays")
    func resumed() async throws {
        try await LoneNode.with { node in
            let first = try await node.open(.device, "cam", instance: 1)
            #expect(first.isConfirmed)
            node.service.close(first.session, link: first.link)
            let second = RecordedLink()
            let resumed = try #require(try node.resume(first, second))
            try await eventually("the owner confirms it") { resumed.isConfirmed || second.confirmedCount == 1 }
            let third = RecordedLink()
            #expect(try node.resume(first, third)?.isConfirmed == true)
            node.service.chosen(first.session, link: third)
            #expect(second.ended == [.linkLost] && third.ended.isEmpty)
        }
    }

    @Test("Where there are too many sessions tokens and tickets are refused with 10007 (D13)")
    func full() async throws {
        var configuration = SessionConfiguration()
        configuration.sessionsMax = 1
        try await LoneNode.with(configuration) { node in
            let first = try await node.open(.app, "app", instance: 1)
            #expect(await code { _ = try await node.open(.device, "cam", instance: 2) } == .overloaded)
            node.service.close(first.session, link: first.link)
            try await eventually("its place is free again") {
                (try? await node.open(.device, "cam", instance: 2)) != nil
            }
            #expect(await code { _ = try node.resume(first, RecordedLink()) } == .overloaded)
        }
    }

    @Test("An app hears that a device comes, sleeps, wakes and leaves")
    func presence() async throws {
        var configuration = SessionConfiguration()
        configuration.presence.grace = .milliseconds(20)
        try await LoneNode.with(configuration) { node in
            let bound = try await node.open(.device, "cam", instance: 1)
            let app = try await node.open(.app, "app", instance: 2)
            let now = try await node.service.inspect(LoneNode.camera, for: app.session, subscribe: true).get()
            #expect(now.online == .online)
            try await node.service.setAsleep(bound.session, true).get()
            try await node.service.setAsleep(bound.session, false).get()
            node.service.close(bound.session, link: bound.link)
            try await eventually("it leaves") { app.link.heard == [.asleep, .online, .offline] }
            await node.service.forget(LoneNode.camera, for: app.session)
            _ = try await node.open(.device, "cam", instance: 3)
            #expect(app.link.heard.count == 3)
        }
    }

    @Test("Requests for devices that do not exist leave nothing in memory, however many come at once (8002)")
    func unknownDevices() async throws {
        try await LoneNode.with { node in
            let app = try await node.open(.app, "app", instance: 1)
            await withTaskGroup(of: Void.self) { group in
                for number in 0..<400 {
                    let device = DeviceID(unchecked: "none-\(number / 4)")
                    group.addTask {
                        let session = app.session
                        let subscribes = number % 4 == 0
                        let failure = await code {
                            _ = try await node.service.inspect(device, for: session, subscribe: subscribes).get()
                        }
                        #expect(failure == .targetUnknown)
                        guard number % 4 == 1 else { return }
                        let relating = await code { try await node.service.relate(device, .unbind, for: session) }
                        // Another change of the same device may be in progress.
                        #expect(relating == .targetUnknown || relating == .versionConflict)
                    }
                }
            }
            try await eventually("the app alone is in memory") { node.entityCount == 1 }
        }
    }

    @Test("A call that a released identity had requested does not release its successor, which has a client")
    func lateCall() async throws {
        var configuration = SessionConfiguration()
        configuration.presence.grace = .milliseconds(200)
        try await LoneNode.with(configuration) { node in
            let first = try await node.open(.device, "cam", instance: 1)
            let app = try await node.open(.app, "app", instance: 2)
            node.service.close(first.session, link: first.link)
            try await eventually("the device is offline and released") { node.entityCount == 1 }
            _ = try await node.service.inspect(LoneNode.camera, for: app.session, subscribe: true).get()
            await node.service.forget(LoneNode.camera, for: app.session)
            #expect(node.entityCount == 1)
            _ = try await node.open(.device, "cam", instance: 3)
            // The call came once its time and the step of the alarms are over.
            try await Task.sleep(for: .milliseconds(400))
            let presence = try await node.service.inspect(LoneNode.camera, for: app.session, subscribe: false).get()
            #expect(presence.online == .online)
        }
    }

    @Test("A new map makes the next owner hear of sessions and of what they listen to")
    func newMap() async throws {
        try await LoneNode.with { node in
            let camera = try await node.open(.device, "cam", instance: 1)
            let app = try await node.open(.app, "app", instance: 2)
            _ = try await node.service.inspect(LoneNode.camera, for: app.session, subscribe: true).get()
            node.changeOwner(epoch: 2)
            var isAsleep = false
            try await eventually("the next owner tells the app") {
                isAsleep.toggle()
                try await node.service.setAsleep(camera.session, isAsleep).get()
                return app.link.heard.count > 1 && app.link.heard.last == (isAsleep ? .asleep : .online)
            }
            #expect(camera.link.ended.isEmpty && app.link.ended.isEmpty)
        }
    }
}
