import ApusCore
import Foundation
import SwiftProtobuf

/// The limits of the events that wait for one hook.
///
/// An account has an eighth of the places and of the bytes. It may use more while at least as much is free as it uses.
/// An account's alarms are counted separately. An eighth of the queue is reserved for alarms.
package struct HookBounds: Sendable, Hashable {
    package var countMax: Int
    package var byteCountMax: Int
    /// Events that are put aside. An account's share of them is computed in the same way.
    package var failedMax: Int

    /// An account has one of so many parts, and one part is reserved for alarms.
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

/// The state of a hook's queue at the shard's owner: when a node delivers the events that wait, and how often that
/// failed. The events themselves are records.
///
/// A node delivers one batch at a time. If the node dies, the next attempt begins when the time of its attempt is over.
///
/// If an endpoint refuses the events of a request, the next request has half of them, until the endpoint refuses a
/// single event. That event is put aside, and the other events follow in their order. Requests grow again while the
/// endpoint accepts them. If an endpoint refuses many events in succession, the requests are delayed more and more,
/// since the endpoint may be out of order.
///
/// The counts come from previous owners and from other nodes. A wrong count makes no node fail, and is corrected once
/// the queue is empty.
///
/// Pure value; times are Unix milliseconds of the cluster's clock.
extension HookQueue {
    /// The delay after the first failed attempt. It doubles with each further failure…
    static let retryDelay: Int64 = 500
    /// …up to this value.
    static let retryDelayMax: Int64 = 60_000
    /// The number of shares for accounts in a queue, with as many again for their alarms. Several accounts may have the
    /// same share.
    package static let sharesMax = 256
    /// The largest share number.
    static let shareNumberMax = 2 * sharesMax
    /// The number of events that are put aside in succession before the next request is delayed.
    static let refusalsMax: UInt32 = 8
    /// The longest stored reason of a failure, in characters.
    private static let failureLengthMax = 256

    /// The number of an account's share, from 1. Alarms have a separate share, so other events cannot displace them.
    package static func share(of account: String, isAlarm: Bool) -> UInt32 {
        UInt32(StableHash.hash(account) % UInt64(sharesMax)) + 1 + (isAlarm ? UInt32(sharesMax) : 0)
    }

    /// Counts an event that was written.
    ///
    /// - Returns: false if the queue has no room. The caller then removes the event.
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
        // A share without waiting events has room for an event of any size.
        guard let own = shares.first(where: { $0.number == event.share }) else { return true }
        var part = bounds.ofOneAccount
        part.countMax = max(part.countMax, all.countMax - Int(clamping: waiting))
        part.byteCountMax = max(part.byteCountMax, all.byteCountMax - Int(clamping: byteCount))
        return part.haveRoom(after: own.events, own.byteCount, for: event)
    }

    private mutating func add(_ event: HookWritten) {
        shares.add(event.share, byteCount: UInt64(event.byteCount))
    }

    /// Notes that events wait in the records. A queue that lost its state, because its owner and its standby died,
    /// starts again.
    package mutating func found(_ customer: String, _ hook: String, at now: Int64) {
        guard dueMs == nil else { return }
        (self.customer, self.hook, waiting, nextMs) = (customer, hook, max(waiting, 1), now)
    }

    /// Whether a node must deliver now. If so, the node has `time` milliseconds from now.
    package mutating func begins(at now: Int64, for time: Int64) -> Bool {
        // A node that died does not report. After a backward step of the clock, neither an attempt nor a delay lasts
        // longer than usual.
        let isSending = sendingUntilMs > now && sendingUntilMs <= now + time
        let isDue = nextMs > 0 && (nextMs <= now || nextMs > now + Self.retryDelayMax)
        guard !isSending, isDue || sendingUntilMs > 0 else { return false }
        (sendingUntilMs, nextMs, more) = (now + time, 0, false)
        return true
    }

    /// Counts an event that the endpoint refused as the only one of its request.
    ///
    /// - Returns: false if there is no room to put it aside. The caller then removes the event.
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

    /// Subtracts events that are no longer put aside.
    package mutating func cleared(_ message: HookCleared) {
        for share in message.shares {
            failed -= min(failed, share.events)
            failedShares.remove(share)
        }
        if message.all { (failed, failedShares) = (0, []) }
    }

    /// Applies the report of a node that finished a delivery.
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
            // The event that was refused is among the remaining suspects.
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

    /// Applies a report that the endpoint refused the events themselves.
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

    /// When the queue must be advanced next; nil: when the next event is written.
    package var dueMs: Int64? { nextMs > 0 ? nextMs : sendingUntilMs > 0 ? sendingUntilMs : nil }
}

/// The number of events in one request to an endpoint.
enum HookBatch {
    static let countMax = UInt32(EventConfiguration.batchMax)

    /// - Parameter asked: the `batch` of ``HookQueue``; 0: no limit but the maximum.
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

    /// Counts events by the shares of their accounts.
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
    /// A report of delivered events and of events that expired.
    init(_ delivered: [HookStoredEvent], expired: [HookStoredEvent], more: Bool) {
        self.init()
        (self.delivered, self.expired, self.more) = (UInt64(delivered.count), UInt64(expired.count), more)
        let removed = delivered + expired
        byteCount = UInt64(removed.reduce(0) { $0 + $1.json.count })
        shares = [HookShare](removed)
    }

    /// A report of events that the endpoint refused and of events that expired. A single refused event leaves the
    /// queue.
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
