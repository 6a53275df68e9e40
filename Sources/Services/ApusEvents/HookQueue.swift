import ApusCore
import Foundation
import SwiftProtobuf

/// The bounds of the events that wait for one hook.
///
/// An account has an eighth of the places and of the bytes. It may have more while at least as much as it has is free.
/// Its alarms are counted by themselves. An eighth of the queue is for alarms only.
package struct HookBounds: Sendable, Hashable {
    package var countMax: Int
    package var byteCountMax: Int
    /// Events that are put aside; shared in the same way.
    package var failedMax: Int

    /// A part of this is one account's, and such a part is for alarms only.
    private static let parts = 8

    package init(countMax: Int, byteCountMax: Int, failedMax: Int = 1000) {
        (self.countMax, self.byteCountMax, self.failedMax) = (countMax, byteCountMax, failedMax)
    }

    var ofOneAccount: Self {
        Self(
            countMax: max(1, countMax / Self.parts), byteCountMax: byteCountMax / Self.parts,
            failedMax: max(1, failedMax / Self.parts))
    }

    var withoutAlarms: Self {
        Self(
            countMax: countMax - countMax / Self.parts, byteCountMax: byteCountMax - byteCountMax / Self.parts,
            failedMax: failedMax)
    }

    fileprivate func haveRoom(after count: UInt64, _ byteCount: UInt64, for event: HookWritten) -> Bool {
        count < countMax && byteCount.addingSaturating(UInt64(event.byteCount)) <= byteCountMax
    }
}

/// The owner's view of the events that wait for a hook: when a node delivers them, and how often that has failed.
/// The events are records.
///
/// A node delivers one batch at a time. If it dies, the next attempt begins when its time is over.
///
/// An endpoint that refuses the events of a request receives half of them next, until it refuses a single one. That
/// event is put aside, and the others go on in their order; requests grow again while they are taken. An endpoint that
/// refuses many events one after the other is asked more and more rarely: it may be out of order.
///
/// The counts come from earlier owners and from other nodes. A count that is wrong makes no node fail, and is right
/// again once the queue is empty.
///
/// Pure value; times are Unix milliseconds of the cluster's clock.
extension HookQueue {
    /// The wait after the first failed attempt; it doubles with each…
    static let retryDelay: Int64 = 500
    /// …up to this.
    static let retryDelayMax: Int64 = 60_000
    /// The shares of accounts in a queue, and as many again for their alarms. More accounts than these have the same
    /// share as another one.
    package static let sharesMax = 256
    /// The largest number of a share.
    static let shareNumberMax = 2 * sharesMax
    /// Events that are put aside one after the other before the endpoint is waited for.
    static let refusalsMax: UInt32 = 8
    /// The longest reason of a failure, in characters.
    private static let failureLengthMax = 256

    /// The number of an account's share, from 1. Its other events do not keep its alarms out.
    package static func share(of account: String, isAlarm: Bool) -> UInt32 {
        UInt32(StableHash.hash(account) % UInt64(sharesMax)) + 1 + (isAlarm ? UInt32(sharesMax) : 0)
    }

    /// An event was written.
    ///
    /// - Returns: false if there is no room for it: the event is to be removed.
    package mutating func written(_ event: HookWritten, at now: Int64, within bounds: HookBounds) -> Bool {
        (customer, hook) = (event.customer, event.hook)
        guard hasRoom(for: event, bounds) else {
            dropped = dropped.addingSaturating(1)
            return false
        }
        waiting += 1
        byteCount += UInt64(event.byteCount)
        if event.share != 0 { add(event) }
        if sendingUntilMs > now {
            more = true
        } else if nextMs == 0 {
            nextMs = now
        }
        return true
    }

    private func hasRoom(for event: HookWritten, _ bounds: HookBounds) -> Bool {
        let all = event.alarm ? bounds : bounds.withoutAlarms
        guard all.haveRoom(after: waiting, byteCount, for: event) else { return false }
        // One event of an account has room, whatever its size.
        guard let own = shares.first(where: { $0.number == event.share }) else { return true }
        var part = bounds.ofOneAccount
        part.countMax = max(part.countMax, all.countMax - Int(clamping: waiting))
        part.byteCountMax = max(part.byteCountMax, all.byteCountMax - Int(clamping: byteCount))
        return part.haveRoom(after: own.events, own.byteCount, for: event)
    }

    private mutating func add(_ event: HookWritten) {
        shares.add(event.share, byteCount: UInt64(event.byteCount))
    }

    /// Events wait in the records. A queue that has lost its state, with the deaths of its owner and its standby,
    /// begins again.
    package mutating func found(_ customer: String, _ hook: String, at now: Int64) {
        guard dueMs == nil else { return }
        (self.customer, self.hook, waiting, nextMs) = (customer, hook, max(waiting, 1), now)
    }

    /// Whether a node is to deliver now. It then has `time` milliseconds.
    package mutating func begins(at now: Int64, for time: Int64) -> Bool {
        // A node that has died does not report. A clock that went back stops neither an attempt nor the next one.
        let isSending = sendingUntilMs > now && sendingUntilMs <= now + time
        let isDue = nextMs > 0 && (nextMs <= now || nextMs > now + Self.retryDelayMax)
        guard !isSending, isDue || sendingUntilMs > 0 else { return false }
        (sendingUntilMs, nextMs, more) = (now + time, 0, false)
        return true
    }

    /// The endpoint has refused a single event.
    ///
    /// - Returns: false if there is no room for it: the event is to be removed.
    package mutating func refuses(_ event: HookRefused, within bounds: HookBounds) -> Bool {
        let own = failedShares.first { $0.number == event.share }?.events ?? 0
        let part = max(bounds.ofOneAccount.failedMax, bounds.failedMax - Int(clamping: failed))
        guard failed < bounds.failedMax, event.share == 0 || own < part else {
            dropped = dropped.addingSaturating(1)
            return false
        }
        failed += 1
        if event.share != 0 { failedShares.add(event.share, byteCount: 0) }
        return true
    }

    /// Events that were put aside are so no longer.
    package mutating func cleared(_ message: HookCleared) {
        for share in message.shares {
            failed -= min(failed, share.events)
            failedShares.remove(share)
        }
        if message.all { (failed, failedShares) = (0, []) }
    }

    /// A node has ended to deliver.
    package mutating func ended(_ report: HookDelivered, at now: Int64) {
        sendingUntilMs = 0
        let left = report.delivered.addingSaturating(report.expired).addingSaturating(report.refused == 1 ? 1 : 0)
        waiting -= min(waiting, left)
        byteCount -= min(byteCount, report.byteCount)
        for share in report.shares { shares.remove(share) }
        dropped = dropped.addingSaturating(report.expired)
        guard report.refused == 0 else { return wasRefused(report, at: now) }
        guard report.failure.isEmpty else {
            failures += failures < .max ? 1 : 0
            failure = String(report.failure.prefix(Self.failureLengthMax))
            nextMs = now + Self.wait(after: failures)
            return
        }
        (failures, failure, refusals) = (0, "", 0)
        suspects -= min(suspects, UInt32(clamping: report.delivered))
        if suspects > 0 {
            // What was refused is among the rest of them.
            batch = max(1, suspects / 2)
        } else {
            batch = batch < HookBatch.countMax / 2 ? batch * 2 : 0
        }
        if report.more || more {
            nextMs = now
        } else {
            (waiting, byteCount, shares, batch, suspects, nextMs) = (0, 0, [], 0, 0, 0)
        }
        more = false
    }

    /// The endpoint has refused the events of a request, and not the request as such.
    private mutating func wasRefused(_ report: HookDelivered, at now: Int64) {
        (failure, more) = (String(report.failure.prefix(Self.failureLengthMax)), false)
        suspects = report.refused == 1 ? 0 : min(report.refused, HookBatch.countMax)
        batch = max(1, suspects / 2)
        guard report.refused == 1 else { return nextMs = now }
        refusals += refusals < .max ? 1 : 0
        let over = refusals > Self.refusalsMax ? refusals - Self.refusalsMax : 0
        nextMs = over == 0 ? now : now + Self.wait(after: over)
    }

    private static func wait(after failures: UInt32) -> Int64 {
        Backoff.wait(after: Int(failures), first: retryDelay, longest: retryDelayMax)
    }

    /// When the queue is to be looked at next; nil: not before an event comes.
    package var dueMs: Int64? { nextMs > 0 ? nextMs : sendingUntilMs > 0 ? sendingUntilMs : nil }
}

/// The events of one request to an endpoint.
enum HookBatch {
    static let countMax = UInt32(EventConfiguration.batchMax)

    /// - Parameter asked: as ``HookQueue`` has it.
    static func count(_ asked: UInt32) -> Int { asked == 0 ? Int(countMax) : Int(min(asked, countMax)) }
}

extension [HookShare] {
    fileprivate mutating func add(_ number: UInt32, byteCount: UInt64) {
        let index = firstIndex { $0.number == number } ?? endIndex
        if index == endIndex { append(.with { $0.number = number }) }
        self[index].events += 1
        self[index].byteCount += byteCount
    }

    fileprivate mutating func remove(_ share: HookShare) {
        guard let index = firstIndex(where: { $0.number == share.number }) else { return }
        guard self[index].events > share.events else {
            remove(at: index)
            return
        }
        self[index].events -= share.events
        self[index].byteCount -= Swift.min(self[index].byteCount, share.byteCount)
    }

    /// The events of these, counted by the shares of their accounts.
    init(_ events: [HookStoredEvent]) {
        self = Dictionary(grouping: events, by: \.share).filter { $0.key != 0 }.map { number, events in
            .with {
                ($0.number, $0.events) = (number, UInt64(events.count))
                $0.byteCount = UInt64(events.reduce(0) { $0 + $1.json.count })
            }
        }
    }
}

extension HookDelivered {
    /// A report on events that were delivered, and on some that had expired.
    init(_ delivered: [HookStoredEvent], expired: [HookStoredEvent], more: Bool) {
        self.init()
        (self.delivered, self.expired, self.more) = (UInt64(delivered.count), UInt64(expired.count), more)
        let removed = delivered + expired
        byteCount = UInt64(removed.reduce(0) { $0 + $1.json.count })
        shares = [HookShare](removed)
    }

    /// A report on events that the endpoint has refused, and on some that had expired. A single refused event has left
    /// the queue.
    init(refused: [HookStoredEvent], expired: [HookStoredEvent], reason: String) {
        self.init(refused.count == 1 ? refused : [], expired: expired, more: true)
        (delivered, self.refused, failure) = (0, UInt32(refused.count), reason)
    }
}

extension UInt64 {
    fileprivate func addingSaturating(_ other: UInt64) -> UInt64 {
        let (sum, isOver) = addingReportingOverflow(other)
        return isOver ? .max : sum
    }
}
