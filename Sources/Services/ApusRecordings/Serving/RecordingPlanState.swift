package import ApusContract
import ApusCore
import SwiftProtobuf

/// What IV-E2 says of a channel at a time.
///
/// Pure.
package struct RecordingPlanState: Sendable {
    package var plan: RecordingPlan?
    package var head: RecordingHead?
    /// Unix milliseconds.
    package var now: Int64

    package init(plan: RecordingPlan?, head: RecordingHead?, now: Int64) {
        (self.plan, self.head, self.now) = (plan, head, now)
    }

    /// True if the channel is recorded now.
    package var isInUse: Bool {
        guard let plan else { return false }
        return plan.startsMs <= now && (plan.endsMs == 0 || now < plan.endsMs)
    }

    /// True if there may be recordings that can be found.
    package var hasHistory: Bool {
        guard let head, head.segments > 0 else { return false }
        guard let plan else { return true }
        let newest = head.endUs / 1000
        return newest > plan.sinceMs && newest > now - Int64(plan.days) * 86_400_000
    }

    package var status: ClientRecordingStatus { isInUse ? .inUse : hasHistory ? .history : .expired }

    /// The earliest time of which there may be a recording, in Unix seconds; 0: there is none.
    package var playbackStart: Int64 {
        guard hasHistory, let head else { return 0 }
        guard let plan else { return head.firstUs.floored(by: 1_000_000) }
        let kept = now - Int64(plan.days) * 86_400_000
        return max(head.firstUs / 1000, plan.sinceMs, kept).floored(by: 1000)
    }

    /// The answer to a client.
    package func client(_ channel: RecordedChannel) -> ClientRecordingPlan {
        .with {
            ($0.device, $0.source, $0.account) = (
                channel.device.rawValue, UInt32(channel.source), channel.account.rawValue
            )
            ($0.status, $0.statusNumber) = (status, UInt32(status.rawValue))
            ($0.playbackStartTime, $0.bytes) = (playbackStart, head?.bytes ?? 0)
            guard let plan else { return }
            ($0.startTime, $0.endTime) = (plan.sinceMs / 1000, plan.endsMs / 1000)
            $0.mode = plan.mode.client
            ($0.curOrderPkgType, $0.curOrderStorageDays) = (UInt32($0.mode.rawValue), plan.days)
            ($0.curOrderStartTime, $0.curOrderEndTime) = (plan.startsMs / 1000, plan.endsMs / 1000)
            ($0.playbackDays, $0.bytesMax) = (plan.days, plan.bytesMax)
        }
    }
}

extension RecordingMode {
    var client: ClientRecordingMode {
        switch self {
        case .continuous: .continuous
        case .event: .event
        case .unspecified, .UNRECOGNIZED: .unspecified
        }
    }
}
