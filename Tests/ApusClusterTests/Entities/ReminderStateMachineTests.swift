import ApusCluster
import ApusCore
import Testing

@Suite("Reminders of the shards that a node owns (D15)")
struct ReminderStateMachineTests {
    private static let entity = EntityAddress(kind: EntityKind(rawValue: 9), key: "a")

    private func reminder(_ number: UInt64, due: Int64, name: String? = nil) -> Reminder {
        Reminder(entity: Self.entity, name: name ?? "\(number)", id: RequestID(high: 0, low: number), due: due)
    }

    /// A node that owns the shard and has read that there are no reminders.
    private func owner(
        _ configure: (inout ReminderStateMachine.Configuration) -> Void = { _ in }
    ) -> ReminderStateMachine {
        var configuration = ReminderStateMachine.Configuration()
        configure(&configuration)
        var machine = ReminderStateMachine(configuration: configuration)
        #expect(
            machine.handle(.gained([Self.entity.shard]), now: 0) == [.read(after: nil, upTo: configuration.horizon)])
        #expect(machine.handle(.read([], isLast: true), now: 0) == [])
        return machine
    }

    @Test("A reminder is delivered at its time, not before, and once where it is taken")
    func delivered() {
        var machine = owner()
        let reminder = reminder(1, due: 5_000)
        #expect(machine.handle(.set(reminder), now: 0) == [])
        #expect(machine.nextDue == 5_000)
        #expect(machine.handle(.tick, now: 4_999) == [])
        #expect(machine.handle(.tick, now: 5_000) == [.deliver(reminder)])
        #expect(machine.handle(.tick, now: 5_100) == [])
        #expect(machine.handle(.delivered(reminder), now: 5_100) == [])
        #expect(machine.handle(.tick, now: 10_000) == [])
        #expect(machine.heldCount == 0)
    }

    @Test("A delivery that failed is repeated after a rest")
    func repeated() {
        var machine = owner()
        let reminder = reminder(1, due: 1_000)
        _ = machine.handle(.set(reminder), now: 0)
        #expect(machine.handle(.tick, now: 1_000) == [.deliver(reminder)])
        #expect(machine.handle(.deliveryFailed(reminder.id), now: 1_050) == [])
        #expect(machine.handle(.tick, now: 1_299) == [])
        #expect(machine.handle(.tick, now: 1_300) == [.deliver(reminder)])
    }

    @Test("The wait doubles with each failure in a row, up to its bound; a clock that goes back does not prolong it")
    func backsOff() {
        var machine = owner { $0.retryDelayMax = 1_000 }
        let reminder = reminder(1, due: 0)
        var deliveries: [Int64] = []
        _ = machine.handle(.set(reminder), now: 0)
        for now in stride(from: Int64(0), through: 5_000, by: 50) {
            guard machine.handle(.tick, now: now).contains(.deliver(reminder)) || now == 0 else { continue }
            deliveries.append(now)
            _ = machine.handle(.deliveryFailed(reminder.id), now: now)
        }
        #expect(deliveries == [0, 250, 750, 1_750, 2_750, 3_750, 4_750])
        #expect(machine.handle(.tick, now: -60_000) == [.deliver(reminder)])
    }

    @Test("Reminders that fail again and again do not keep others from their deliveries")
    func fair() {
        var machine = owner { $0.deliveringCountMax = 2 }
        let failing = (0..<40).map { reminder(UInt64($0), due: 0) }
        for reminder in failing { _ = machine.handle(.set(reminder), now: -1) }
        var waits: [Int64] = []
        var running: [(end: Int64, id: RequestID)] = []
        // Each delivery takes 200 ms. 40 that fail, at 4 s, need four times what there is.
        for now in stride(from: Int64(0), through: 30_000, by: 100) {
            var actions: [ReminderStateMachine.Action] = []
            for delivery in running where delivery.end <= now {
                actions += machine.handle(.deliveryFailed(delivery.id), now: now)
            }
            running.removeAll { $0.end <= now }
            if now >= 10_000, now % 1_000 == 0 {
                actions += machine.handle(.set(reminder(UInt64(1_000 + now), due: now)), now: now)
            }
            actions += machine.handle(.tick, now: now)
            for case .deliver(let reminder) in actions {
                if reminder.id.low >= 1_000 {
                    waits.append(now - reminder.due)
                    _ = machine.handle(.delivered(reminder), now: now)
                } else {
                    running.append((now + 200, reminder.id))
                }
            }
            #expect(machine.deliveringCount <= 2)
        }
        #expect(waits.count == 21 && waits.max() ?? .max <= 200, "\(waits)")
    }

    @Test("Setting a reminder again replaces it; cancelling it ends it")
    func replaced() {
        var machine = owner()
        _ = machine.handle(.set(reminder(1, due: 1_000, name: "ring")), now: 0)
        _ = machine.handle(.set(reminder(2, due: 3_000, name: "ring")), now: 0)
        #expect(machine.handle(.tick, now: 2_000) == [])
        #expect(machine.handle(.tick, now: 3_000) == [.deliver(reminder(2, due: 3_000, name: "ring"))])
        _ = machine.handle(.set(reminder(3, due: 4_000, name: "ring")), now: 3_000)
        _ = machine.handle(.cancelled(Self.entity, name: "ring"), now: 3_500)
        #expect(machine.handle(.tick, now: 9_000) == [])
    }

    @Test("A node that takes a shard over reads its reminders at once, and delivers what is overdue")
    func takenOver() {
        var machine = ReminderStateMachine()
        #expect(machine.handle(.gained([Self.entity.shard]), now: 9_000) == [.read(after: nil, upTo: 69_000)])
        let (overdue, later) = (reminder(1, due: 4_000), reminder(2, due: 12_000))
        #expect(
            machine.handle(.read([overdue], isLast: false), now: 9_001)
                == [.read(after: .init(overdue), upTo: 69_000), .deliver(overdue)])
        #expect(machine.handle(.read([later], isLast: true), now: 9_002) == [])
        #expect(machine.handle(.tick, now: 12_000) == [.deliver(later)])
    }

    @Test("What is due is looked at again, since a step whose outcome nobody knows may have set it")
    func rechecked() {
        var machine = owner { $0.recheckInterval = 500 }
        #expect(machine.handle(.tick, now: 100) == [.read(after: nil, upTo: 100)])
        let (missed, next) = (reminder(1, due: 90), reminder(2, due: 95))
        #expect(machine.handle(.read([missed], isLast: false), now: 110) == [.deliver(missed)])
        #expect(machine.handle(.tick, now: 600) == [])
        // The next page goes on where that one ended, and a failure is no reason to read all again.
        #expect(machine.handle(.tick, now: 610) == [.read(after: .init(missed), upTo: 610)])
        #expect(machine.handle(.readFailed, now: 620) == [])
        #expect(machine.handle(.tick, now: 1_120) == [.read(after: .init(missed), upTo: 1_120)])
        #expect(machine.handle(.read([next], isLast: true), now: 1_130) == [.deliver(next)])
        #expect(machine.handle(.tick, now: 1_630) == [.read(after: nil, upTo: 1_630)])
        // What was carried out since the page was asked for is not brought back by it.
        _ = machine.handle(.delivered(missed), now: 1_631)
        #expect(machine.handle(.read([missed], isLast: true), now: 1_632) == [])
        #expect(machine.heldCount == 1)
    }

    @Test("The records replace what is held under the same name")
    func replacedUnknown() {
        var machine = owner { $0.recheckInterval = 500 }
        _ = machine.handle(.set(reminder(1, due: 9_000, name: "ring")), now: 0)
        _ = machine.handle(.tick, now: 700)
        let other = reminder(2, due: 600, name: "ring")
        #expect(machine.handle(.read([other], isLast: true), now: 710) == [.deliver(other)])
        #expect(machine.heldCount == 1)
    }

    @Test("Reminders of another node's shard are not delivered, and those of one that left are not either")
    func others() {
        var machine = owner()
        let elsewhere = EntityAddress(
            kind: EntityKind(rawValue: 9), key: "b", shard: ShardID((Self.entity.shard.rawValue + 1) % 4_096))
        _ = machine.handle(.gained([Self.entity.shard]), now: 0)
        let foreign = Reminder(entity: elsewhere, name: "x", id: RequestID(high: 1, low: 1), due: 10)
        _ = machine.handle(.read([foreign, reminder(1, due: 20)], isLast: true), now: 0)
        #expect(machine.heldCount == 1)
        _ = machine.handle(.lost([Self.entity.shard]), now: 5)
        #expect(machine.handle(.tick, now: 100) == [])
        #expect(machine.heldCount == 0)
    }

    @Test("A page that is older than a cancellation, a setting or a delivery brings nothing back")
    func oldPage() {
        var machine = owner()
        let (cancelled, replaced, done) = (reminder(1, due: 10), reminder(2, due: 20), reminder(3, due: 30))
        for reminder in [cancelled, replaced, done] { _ = machine.handle(.set(reminder), now: 0) }
        #expect(machine.handle(.gained([Self.entity.shard]), now: 1) == [.read(after: nil, upTo: 60_001)])
        _ = machine.handle(.cancelled(Self.entity, name: "1"), now: 2)
        _ = machine.handle(.set(reminder(4, due: 200_000, name: "2")), now: 2)
        #expect(machine.handle(.tick, now: 30) == [.deliver(done)])
        _ = machine.handle(.delivered(done), now: 31)
        #expect(machine.handle(.read([cancelled, replaced, done], isLast: true), now: 32) == [])
        #expect(machine.heldCount == 0)
    }

    @Test("What is set while pages are read is held, also where its page has passed")
    func setMeanwhile() {
        var machine = ReminderStateMachine()
        _ = machine.handle(.gained([Self.entity.shard]), now: 0)
        let first = reminder(1, due: 50_000)
        #expect(machine.handle(.read([first], isLast: false), now: 0) == [.read(after: .init(first), upTo: 60_000)])
        let early = reminder(2, due: 40_000)
        _ = machine.handle(.set(early), now: 0)
        _ = machine.handle(.read([], isLast: true), now: 0)
        #expect(machine.handle(.tick, now: 40_000).contains(.deliver(early)))
    }

    @Test("What is set after the clock went an hour forward is delivered, also while an earlier read is under way")
    func clockForward() {
        let hour: Int64 = 3_600_000
        // The read that began with the wrong clock has not ended.
        var machine = ReminderStateMachine()
        #expect(machine.handle(.gained([Self.entity.shard]), now: 0) == [.read(after: nil, upTo: 60_000)])
        let soon = reminder(1, due: hour + 5_000)
        #expect(machine.handle(.set(soon), now: hour) == [])
        #expect(machine.handle(.tick, now: hour + 5_000) == [.deliver(soon)])
        // It ends now, and what it lacks is read. It brings nothing twice.
        #expect(machine.handle(.delivered(soon), now: hour + 5_001) == [])
        #expect(machine.handle(.read([], isLast: true), now: hour + 5_002) == [])
        let late = reminder(2, due: hour + 70_000)
        #expect(machine.handle(.set(late), now: hour + 5_003) == [])
        let next = ReminderStateMachine.Cursor(due: 60_000, id: RequestID(high: .max, low: .max))
        #expect(machine.handle(.tick, now: hour + 5_100) == [.read(after: next, upTo: hour + 65_100)])
        #expect(machine.handle(.read([], isLast: true), now: hour + 5_101) == [])
        #expect(machine.handle(.tick, now: hour + 35_101).count == 1)
        #expect(machine.handle(.read([late], isLast: true), now: hour + 35_102) == [])
        #expect(machine.handle(.tick, now: hour + 70_000).contains(.deliver(late)))
    }

    @Test("What is due beyond the horizon is read when its time comes nearer")
    func horizon() {
        var machine = owner()
        let late = reminder(1, due: 80_000)
        _ = machine.handle(.set(late), now: 0)
        #expect(machine.heldCount == 0)
        #expect(machine.handle(.tick, now: 30_000) == [])
        let actions = machine.handle(.tick, now: 30_001)
        #expect(actions == [.read(after: .init(due: 60_000, id: RequestID(high: .max, low: .max)), upTo: 90_001)])
        _ = machine.handle(.read([late], isLast: true), now: 30_002)
        #expect(machine.handle(.tick, now: 80_000).contains(.deliver(late)))
    }

    @Test("Many that are overdue are delivered a bounded number at a time, the oldest first")
    func flood() {
        var machine = owner { $0.deliveringCountMax = 3 }
        for number: UInt64 in 1...10 { _ = machine.handle(.set(reminder(number, due: Int64(number))), now: 0) }
        var delivered: [UInt64] = []
        var actions = machine.handle(.tick, now: 100)
        #expect(actions.count == 3)
        while let action = actions.popLast(), case .deliver(let reminder) = action {
            delivered.append(reminder.id.low)
            #expect(machine.deliveringCount <= 3)
            actions += machine.handle(.delivered(reminder), now: 100)
        }
        #expect(delivered.sorted() == Array(1...10))
        #expect(delivered.prefix(3).max() ?? 0 <= 5)
    }

    @Test("A read that failed is repeated from the start")
    func readFailed() {
        var machine = ReminderStateMachine()
        _ = machine.handle(.gained([Self.entity.shard]), now: 0)
        #expect(machine.handle(.readFailed, now: 10) == [])
        #expect(machine.handle(.tick, now: 259) == [])
        #expect(machine.handle(.tick, now: 260) == [.read(after: nil, upTo: 60_260)])
    }

    @Test(
        "With shards that move, late pages, failed reads and few places, each reminder is delivered once it is due",
        arguments: 0..<300)
    func any(seed: Int) {
        var simulation = ReminderSimulation(seed: UInt64(seed))
        simulation.run()
        #expect(simulation.problems == [])
    }
}
