import ApusCommands
import ApusCore
import Foundation
import SwiftProtobuf
import Testing

/// Random schedules of senders, a device that sleeps, restarts and repeats itself, and messages that are lost.
@Suite("Schedules of commands (IV-D15)")
struct CommandScheduleTests {
    /// A device that carries each command out once, as the device library does.
    private struct Device {
        var carriedOut: [Data: Int] = [:]
        /// Received, and not carried out. Lost with a restart.
        var waiting: [Data] = []
        /// Answers that the queue has not confirmed.
        var answers: Set<Data> = []
    }

    private struct World {
        var queue = CommandState()
        var device = Device()
        var now: Int64 = 0
        var configuration = CommandConfiguration()
        var random: SeededRandom
        var number = 0
        /// What senders were told of each command.
        var told: [Data: [CommandStatus]] = [:]
        var connection: UInt64 = 0

        mutating func perform(_ body: (inout CommandState, inout CommandState.Effects) throws -> Void) {
            var effects = CommandState.Effects()
            try? body(&queue, &effects)
            for (listener, entry) in effects.deliveries where listener.number == connection && random.next() % 8 != 0 {
                let id = entry.id
                if device.answers.contains(id) || device.carriedOut[id] != nil || device.waiting.contains(id) {
                    continue
                }
                device.waiting.append(id)
            }
            for (_, entry) in effects.reached { told[entry.id, default: []].append(entry.status) }
        }
    }

    private static func step(_ world: inout World) {
        let (now, configuration) = (world.now, world.configuration)
        switch world.random.next() % 12 {
        case 0, 1, 2:
            world.number += 1
            let ttl = Int64(world.random.next() % 20_000) + 1
            let submit = CommandQueueTests.submit(world.number, ttl: ttl)
            world.perform { queue, effects in _ = try queue.submit(submit, configuration, at: now, &effects) }
        case 3 where world.number > 0:
            let again = Int(world.random.next() % UInt64(world.number)) + 1
            guard let known = world.queue.entry(CommandQueueTests.id(again)) else { return }
            let submit = CommandQueueTests.submit(again, ttl: known.expiresMs)
            world.perform { queue, effects in _ = try queue.submit(submit, configuration, at: now, &effects) }
        case 4:
            world.connection += 1
            let listener = CommandListener.with { ($0.node, $0.number) = ("n1", world.connection) }
            world.perform { queue, effects in queue.listen(listener, configuration, at: now, &effects) }
        case 5:
            let listener = CommandListener.with { ($0.node, $0.number) = ("n1", world.connection) }
            if world.random.next() % 2 == 0 { world.queue.leave(listener) }
            if world.random.next() % 2 == 0 { world.device.waiting = [] }
        case 6:
            let ids = world.device.waiting
            world.perform { queue, effects in queue.acknowledge(ids, configuration, at: now, &effects) }
        case 7, 8:
            guard !world.device.waiting.isEmpty else { return }
            let id = world.device.waiting.removeFirst()
            world.device.carriedOut[id, default: 0] += 1
            world.device.answers.insert(id)
        case 9, 10:
            guard let id = world.device.answers.sorted(by: { $0.lexicographicallyPrecedes($1) }).first else { return }
            let answer = CommandAnswer.with { ($0.id, $0.answer) = (id, Data("1".utf8)) }
            world.perform { queue, effects in try queue.answer(answer, configuration, at: now, &effects) }
            if world.random.next() % 4 != 0 { world.device.answers.remove(id) }
        default:
            world.now += Int64(world.random.next() % 8_000)
            let now = world.now
            world.perform { queue, effects in queue.advance(configuration, at: now, &effects) }
        }
    }

    @Test(
        "No command is carried out twice, none that expired is, and none is said to be answered that is not",
        arguments: 0..<300)
    func schedule(seed: Int) throws {
        var world = World(random: SeededRandom(seed: UInt64(seed)))
        world.queue.order = [CommandOrder.allAtOnce, .afterAcknowledgement, .afterAnswer][seed % 3]
        for _ in 0..<400 {
            Self.step(&world)
            let queue = world.queue
            #expect(queue.open.count <= 64 && queue.ended.count <= 32)
            #expect(Set((queue.open + queue.ended).map(\.id)).count == queue.open.count + queue.ended.count)
            for entry in queue.open + queue.ended {
                let count = world.device.carriedOut[entry.id] ?? 0
                #expect(count <= 1)
                switch entry.status {
                case .answered: #expect(count == 1)
                case .expired, .queued: #expect(count == 0)
                default: break
                }
            }
            if queue.order == .afterAnswer { #expect(queue.open.count { $0.status > .queued } <= 1) }
        }
        // A device that stays connected gets everything that its queue has.
        world.device.waiting = []
        for _ in 0..<200 where !world.queue.open.isEmpty || !world.device.answers.isEmpty {
            world.connection += 1
            let (now, configuration) = (world.now, world.configuration)
            let listener = CommandListener.with { ($0.node, $0.number) = ("n1", world.connection) }
            world.perform { queue, effects in queue.listen(listener, configuration, at: now, &effects) }
            for id in world.device.waiting { world.device.carriedOut[id, default: 0] += 1 }
            world.device.answers.formUnion(world.device.waiting)
            world.device.waiting = []
            for id in world.device.answers {
                let answer = CommandAnswer.with { ($0.id, $0.answer) = (id, Data("1".utf8)) }
                world.perform { queue, effects in try queue.answer(answer, configuration, at: now, &effects) }
            }
            world.device.answers = []
        }
        #expect(world.queue.open.isEmpty)
        #expect(world.device.carriedOut.values.allSatisfy { $0 == 1 })
        // Who waited heard of each command's end once.
        for (id, statuses) in world.told {
            #expect(statuses.count == 1, "\(id): \(statuses)")
        }
    }
}
