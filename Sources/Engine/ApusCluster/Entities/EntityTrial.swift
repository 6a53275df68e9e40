package import ApusCore
import ApusWire
import Synchronization

/// A message that the handlers of a kind carry out outside of a node: what it has to know, and what it has caused.
///
/// The simulation of clusters runs the handlers of services in this manner, with its own times, ids and durability.
/// Nothing is sent, stored or reminded: that is up to whoever runs it.
package struct EntityTrial<Content: EntityContent>: Sendable {
    package let address: EntityAddress
    package let epoch: Epoch
    /// Unix milliseconds.
    package let wallMilliseconds: Int64
    /// The entity's pending reminders.
    package let reminders: [Reminder]
    /// Makes the ids of the reminders that it sets.
    package let makeID: @Sendable () -> RequestID
    /// The state. A message that fails does not change it.
    package var content: Content
    /// The answer of the handler.
    package private(set) var answer: Result<[UInt8], ApusError> = .failure(ApusError(.methodUnknown))
    package private(set) var changes: [ReminderChange] = []
    package private(set) var tellings: [SentMessage] = []
    package private(set) var mayBeLost = false
    package private(set) var isDone = false

    package init(
        _ content: Content, of address: EntityAddress, epoch: Epoch, wallMilliseconds: Int64, reminders: [Reminder],
        makeID: @escaping @Sendable () -> RequestID
    ) {
        (self.content, self.address, self.epoch, self.reminders) = (content, address, epoch, reminders)
        (self.wallMilliseconds, self.makeID) = (wallMilliseconds, makeID)
    }

    /// Carries out a message of this method.
    package mutating func carryOut(_ method: UInt16, _ message: [UInt8], by definition: EntityDefinition<Content>) {
        carryOut(method, message, by: definition, EntityCall())
    }

    /// Carries out a reminder. It has no effect if the entity has no such reminder any more.
    package mutating func remind(_ reminder: Reminder, by definition: EntityDefinition<Content>) {
        var call = EntityCall()
        call.request = reminder.id
        do throws(ApusError) {
            carryOut(EntityReminded.method, try EntityReminded(reminder).trialBytes(), by: definition, call)
        } catch {
            answer = .failure(error)
        }
    }

    private mutating func carryOut(
        _ method: UInt16, _ message: [UInt8], by definition: EntityDefinition<Content>, _ call: EntityCall
    ) {
        guard let reader = definition.readers[method] else { return }
        let failure = TrialFailure()
        do throws(ApusError) {
            guard let body = reader(message, { error in failure.error = error }) else { throw ApusError(.malformed) }
            var (new, scope) = (content, makeScope(call))
            let outcome: EntityWork<Content>.Outcome
            switch body {
            case .change(let change): outcome = change(&new, &scope)
            case .read(let read): outcome = read(new, scope)
            }
            guard !outcome.isFailure, case .reply(let bytes)? = outcome.answer else {
                outcome.send()
                throw failure.error ?? ApusError(.internalFailure)
            }
            tellings = []
            for telling in scope.tellings { tellings.append(try telling.sent()) }
            (content, answer) = (new, .success(bytes))
            (changes, mayBeLost, isDone) = (scope.reminderChanges, scope.mayBeLost, scope.isDone)
        } catch {
            answer = .failure(error)
        }
    }

    private func makeScope(_ call: EntityCall) -> EntityScope {
        EntityScope(
            address: address, epoch: epoch, call: call, wallMilliseconds: wallMilliseconds, reminders: reminders,
            makeID: makeID)
    }
}

/// The error that a handler has answered with.
///
/// Isolation: `Sendable`; guarded by a `Mutex`.
private final class TrialFailure: Sendable {
    private let state = Mutex<ApusError?>(nil)

    var error: ApusError? {
        get { state.withLock { $0 } }
        set { state.withLock { $0 = newValue } }
    }
}
