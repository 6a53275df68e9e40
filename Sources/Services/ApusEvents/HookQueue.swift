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

    /// A part of this is one account's, and such a part is for alarms only.
    private static let parts = 8

    package init(countMax: Int, byteCountMax: Int) { (self.countMax, self.byteCountMax) = (countMax, byteCountMax) }

    var ofOneAccount: Self {
        Self(countMax: max(1, countMax / Self.parts), byteCountMax: byteCountMax / Self.parts)
    }

    var withoutAlarms: Self {
        Self(countMax: countMax - countMax / Self.parts, byteCountMax: byteCountMax - byteCountMax / Self.parts)
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
        let index = shares.firstIndex { $0.number == event.share } ?? shares.endIndex
        if index == shares.endIndex { shares.append(.with { $0.number = event.share }) }
        shares[index].events += 1
        shares[index].byteCount += UInt64(event.byteCount)
    }

    private mutating func remove(_ share: HookShare) {
        guard let index = shares.firstIndex(where: { $0.number == share.number }) else { return }
        guard shares[index].events > share.events else {
            shares.remove(at: index)
            return
        }
        shares[index].events -= share.events
        shares[index].byteCount -= min(shares[index].byteCount, share.byteCount)
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

    /// A node has ended to deliver.
    package mutating func ended(_ report: HookDelivered, at now: Int64) {
        sendingUntilMs = 0
        waiting -= min(waiting, report.delivered.addingSaturating(report.expired))
        byteCount -= min(byteCount, report.byteCount)
        for share in report.shares { remove(share) }
        dropped = dropped.addingSaturating(report.expired)
        guard report.failure.isEmpty else {
            failures += failures < .max ? 1 : 0
            failure = String(report.failure.prefix(Self.failureLengthMax))
            let delay = min(Self.retryDelay << Int64(min(failures - 1, 16)), Self.retryDelayMax)
            nextMs = now + delay
            return
        }
        (failures, failure) = (0, "")
        if report.more || more {
            nextMs = now
        } else {
            (waiting, byteCount, shares, nextMs) = (0, 0, [], 0)
        }
        more = false
    }

    /// When the queue is to be looked at next; nil: not before an event comes.
    package var dueMs: Int64? { nextMs > 0 ? nextMs : sendingUntilMs > 0 ? sendingUntilMs : nil }
}

extension HookDelivered {
    /// A report on events that were delivered, and on some that had expired.
    init(_ delivered: [HookStoredEvent], expired: [HookStoredEvent], more: Bool) {
        self.init()
        (self.delivered, self.expired, self.more) = (UInt64(delivered.count), UInt64(expired.count), more)
        let removed = delivered + expired
        byteCount = UInt64(removed.reduce(0) { $0 + $1.json.count })
        shares = Dictionary(grouping: removed, by: \.share).filter { $0.key != 0 }.map { number, events in
            .with {
                ($0.number, $0.events) = (number, UInt64(events.count))
                $0.byteCount = UInt64(events.reduce(0) { $0 + $1.json.count })
            }
        }
    }
}

extension UInt64 {
    fileprivate func addingSaturating(_ other: UInt64) -> UInt64 {
        let (sum, isOver) = addingReportingOverflow(other)
        return isOver ? .max : sum
    }
}
