import ApusCluster
import ApusCore
import ApusStorage
import DequeModule
import Foundation
import SwiftProtobuf

/// The state of a simulated entity: the numbers of all requests that it carried out, in order, four bytes each.
///
/// A missing number was lost, and a duplicate was done twice.
typealias SimulatedContent = Google_Protobuf_BytesValue

extension SimulatedContent: EntityContentMessage {
    /// The numbers that it carried out, first to last.
    var numbers: [Int] {
        var numbers: [Int] = []
        numbers.reserveCapacity(value.count / 4)
        var number = 0
        for (index, byte) in value.enumerated() {
            number = number << 8 | Int(byte)
            guard index % 4 == 3 else { continue }
            numbers.append(number)
            number = 0
        }
        return numbers
    }

    var count: Int { value.count / 4 }

    /// The number that was carried out last; nil: none yet.
    var last: Int? { value.isEmpty ? nil : Self.number(of: Array(value.suffix(4))) }

    /// Before that.
    var withoutLast: SimulatedContent { SimulatedContent.with { $0.value = value.dropLast(4) } }

    mutating func append(_ number: Int) { value.append(contentsOf: Self.bytes(of: number)) }

    static func bytes(of number: Int) -> [UInt8] {
        [24, 16, 8, 0].map { UInt8(truncatingIfNeeded: number >> $0) }
    }

    static func number(of bytes: [UInt8]) -> Int { bytes.reduce(0) { $0 << 8 | Int($1) } }
}

extension EntityAddress {
    /// True if its changes are acknowledged as records.
    var isRecorded: Bool { kind == .recordedProbe }
}

/// A message to a simulated entity, with the path of its answer.
struct SimulatedCall: Sendable {
    enum Operation: Sendable, Equatable {
        case change
        /// Throws, and changes nothing.
        case fail
        /// Sets the reminder of a name, due after so many milliseconds.
        case remind(name: String, after: Int64)
        case cancelReminder(name: String)
        /// Sends a message to another entity.
        case tell(EntityAddress)
        /// A message from another entity.
        case tellReceived
        /// A reminder.
        case reminded(Reminder)
        /// A message of a service's kind of entity, by its method.
        case message(UInt16, [UInt8])
    }

    enum Origin: Sendable, Equatable {
        /// A client's request, by the number of its try.
        case ask(Int)
        case reminder(Reminder)
        case tell
    }

    var entity: EntityAddress
    /// The number that its change adds to the entity's content.
    var number: Int
    var id: RequestID?
    var operation: Operation
    var origin: Origin
    /// The entity that sends it, and under which epoch; nil if the sender is not an entity.
    var sender: EntityHeader?
}

/// What a simulated entity sends once a change is confirmed.
struct SimulatedEnding: Sendable {
    var call: SimulatedCall
    /// The position of its change among the entity's; nil if it threw.
    var answer: [UInt8]?
    var reminders: [ReminderChange] = []
    var entries: [OutboxEntry] = []
    /// A message to another entity, under its number.
    var telling: (target: EntityAddress, number: Int)?
    /// Of an entity of a service: the error that the handler has thrown, its state afterwards, and what it sends.
    var error: ApusError?
    var content: SimulatedContent?
    var tellings: [SentMessage] = []
    /// The entity is released if nothing else waits for it.
    var isDone = false
}

/// The outcome of a call.
enum SimulatedOutcome {
    /// With the epoch of the owner that answered.
    case answered([UInt8], Epoch)
    case threw(ApusError?)
    case refused(ApusError, knownEpoch: Epoch?)
}

/// One activation of an entity: the machine that ``EntityCell`` runs.
final class SimulatedCell {
    typealias Machine = EntityStateMachine<SimulatedContent, SimulatedCall, SimulatedEnding>

    let address: EntityAddress
    let epoch: Epoch
    var machine: Machine
    /// The version of the state that was read or written last.
    var version: UInt64 = 0
    /// Admitted calls that are not answered.
    var runningCount = 0
    /// What is sent when the node may answer again.
    var held: Deque<SimulatedEnding> = []

    init(_ address: EntityAddress, epoch: Epoch) {
        (self.address, self.epoch) = (address, epoch)
        machine = Machine(
            initial: SimulatedContent(),
            configuration: Machine.Configuration(isKept: true, isSame: { $0.isExactly($1) }))
    }
}

/// Deliberate errors around the entities' machines; the checks of ``EntitySimulation`` must find each.
package enum EntityMutant: String, Sendable, CaseIterable {
    case none = "does everything right"
    case acknowledgesEarly = "acknowledges before the standby has it"
    case answersUnconfirmed = "answers from a state that the standby may not have"
    case acknowledgesUnwritten = "acknowledges before the record is durable"
    case forgetsRequests = "forgets request ids at a hand-over"
    case skipsClaim = "reads a shard's records before it has claimed them"
    case skipsClaimCheck = "writes without looking at the shard's claim"
    case ignoresVersions = "writes a record whatever its version is"
    case takesUnknownForRefused = "says that a step of unknown outcome was not made"
    case partsReminders = "writes a reminder apart from its entity's state"
    case partsOutbox = "writes an outbox entry apart from its entity's state"
    case deliversUnstored = "delivers an outbox entry before it is durable"
    case removesUndelivered = "removes an outbox entry before it is delivered"
    case forgetsOutbox = "does not read the outboxes of the shards that it gains"
    case dropsOutbox = "removes the outbox entries of a shard that it hands over"
    case deliversTwice = "delivers an outbox entry again that it has delivered"
    case trustsRecords = "does not read outboxes again where a step may have been made"
    case keepsIndexEntries = "keeps an index entry without its record"
    case dropsIndexEntries = "writes a record without its index entry"
    case dropsRemindersAtPromotion = "drops reminders at a promotion"
    case remindsEarly = "delivers reminders before their time"
    case forgetsReminders = "holds no reminder that is set while it owns the shard"
    case dropsEpochs = "sends effects without an epoch"
    case tellsEarly = "sends an effect before its change is safe"
    case hidesLosses = "reports no loss"
    case promotesEmpty = "opens a shard without the copy that it has"
    case starvesSecondStandby = "sends its second standbys no states"
    case forgetsSecondStandby = "does not wait for the second standby of the epoch before"
    case repeatsWithoutID = "repeats a request without an id whose outcome is unknown"

    /// The profile of runs in which the error has an effect.
    package var profile: SimulationProfile {
        switch self {
        case .starvesSecondStandby, .forgetsSecondStandby: .pairs
        default: .entities
        }
    }

    /// True if the error has an effect only where entities have outboxes.
    package var needsOutbox: Bool {
        switch self {
        case .partsOutbox, .deliversUnstored, .removesUndelivered, .forgetsOutbox, .dropsOutbox, .deliversTwice,
            .trustsRecords:
            true
        default: false
        }
    }
}
