import ApusChannels
import ApusCluster
import ApusCore
import ApusMedia
import ApusRecordingLog
import ApusSessions
import ApusStorage
import CoreMetrics
import NIOCore

/// The turns of a node's recorder: which channels it taps, their frames, and what is due to be sealed.
///
/// Concurrency model: confined to one task.
struct RecordingTurns {
    private let context: RecordingContext
    private let log: RecordingLog
    private var recorders: [ChannelID: ChannelRecorder] = [:]
    private var followedAt = MonotonicTime.zero
    private var plansReadAt = MonotonicTime.zero
    private var sealedAt = MonotonicTime.zero
    private var releasedAt = MonotonicTime.zero
    /// The plans of the channels that are here.
    private var plans: [ChannelID: RecordingPlan] = [:]

    init(_ context: RecordingContext, _ log: RecordingLog) { (self.context, self.log) = (context, log) }

    /// Takes the frames that came, and looks for channels from time to time.
    mutating func take(now: MonotonicTime) async {
        if now - followedAt >= RecordingConfiguration.followInterval {
            followedAt = now
            await follow(now)
        }
        let wall = context.nowMs * 1000
        for recorder in recorders.values {
            let (frames, lost) = recorder.take(wall: wall)
            if lost > 0 { context.meters.lost.increment(by: Int64(clamping: lost)) }
            guard !frames.isEmpty else { continue }
            context.meters.frames.increment(by: Int64(frames.count))
            let refused = log.append(recorder.name, frames)
            if refused > 0 { context.meters.refused.increment(by: Int64(refused)) }
        }
    }

    func close() { for recorder in recorders.values { recorder.close() } }

    // MARK: - Channels

    /// Taps the channels that have a plan and are published or copied here, and leaves the others.
    private mutating func follow(_ now: MonotonicTime) async {
        let here = await context.channels.status().filter { $0.channel.device != nil && $0.role != .edge }
        let known = Set(here.map(\.channel))
        if now - plansReadAt >= RecordingConfiguration.planInterval || known.contains(where: { plans[$0] == nil }) {
            plansReadAt = now
            await readPlans(of: known)
        }
        for status in here {
            guard let recorded = plans[status.channel].flatMap({ $0.recorded(at: context.nowMs) }),
                isRunning(status, recorded)
            else { continue }
            if let running = recorders[status.channel] {
                if running.recorded != recorded { leave(status.channel) } else { continue }
            }
            await join(recorded)
        }
        for (channel, recorder) in recorders {
            let isPlanned = plans[channel]?.recorded(at: context.nowMs) == recorder.recorded
            let isIdle = now - recorder.lastFrameAt >= RecordingConfiguration.idleTime
            if !known.contains(channel) || !isPlanned || isIdle { leave(channel) }
        }
        context.meters.channels.record(recorders.count)
    }

    /// True if frames come, or came that are not in the log.
    private func isRunning(_ status: ChannelStatus, _ recorded: RecordedChannel) -> Bool {
        guard let last = status.last else { return status.isFed }
        return status.isFed || log.logged(recorded.description).map { last > $0 } ?? true
    }

    private mutating func join(_ recorded: RecordedChannel) async {
        do throws(ApusError) {
            // A device that has changed hands is recorded for nobody until its new account wants it.
            let account = try await context.sessions.record(of: recorded.device)?.account
            guard account == recorded.account else { return }
            let logged = log.logged(recorded.description)
            recorders[recorded.channel] = ChannelRecorder(recorded, try await context.tap(recorded, after: logged))
        } catch {
            context.raise(error)
        }
    }

    private mutating func leave(_ channel: ChannelID) {
        recorders.removeValue(forKey: channel)?.close()
    }

    private mutating func readPlans(of channels: Set<ChannelID>) async {
        do throws(ApusError) {
            plans = try await context.index.plans(of: channels)
        } catch {
            // Those that are known remain.
            context.raise(error)
        }
    }

    // MARK: - Sealing

    /// The channels that are to be sealed now.
    mutating func due(now: MonotonicTime) -> [RecordingSeal] {
        guard now - sealedAt >= RecordingConfiguration.sealInterval else { return [] }
        sealedAt = now
        let isRelease = now - releasedAt >= RecordingConfiguration.releaseInterval
        if isRelease { releasedAt = now }
        let wall = context.nowMs * 1000
        var seals: [RecordingSeal] = []
        var (bytes, oldest) = (0, wall)
        for logged in log.channels {
            guard let channel = RecordedChannel(name: logged.name) else { continue }
            bytes += logged.byteCount
            let age = Duration.microseconds(wall - logged.oldestMicroseconds)
            if context.view.isLocal(channel.channel.shard) {
                oldest = min(oldest, logged.oldestMicroseconds)
                let isIdle = recorders[channel.channel].map { $0.name != logged.name } ?? true
                if isIdle || age >= context.configuration.segmentDuration {
                    seals.append(RecordingSeal(channel: channel, end: isIdle ? .stopped : nil))
                }
            } else if age >= RecordingConfiguration.abandonedAge {
                seals.append(RecordingSeal(channel: channel, end: .stopped))
            } else if isRelease {
                seals.append(RecordingSeal(channel: channel, isRelease: true))
            }
        }
        context.meters.logBytes.record(bytes)
        context.meters.unsealed.record(Double(wall - oldest) / 1_000_000)
        return seals
    }
}

extension RecordingPlan {
    /// What the plan records at a time, in Unix milliseconds; nil if nothing.
    func recorded(at now: Int64) -> RecordedChannel? {
        guard mode == .continuous, startsMs <= now, endsMs == 0 || now < endsMs,
            let source = UInt16(exactly: source)
        else { return nil }
        return RecordedChannel(
            account: AccountID(unchecked: account), device: DeviceID(unchecked: device), source: source)
    }
}

extension RecordedChannel {
    /// The channel of a name in the log.
    init?(name: String) {
        let parts = name.split(separator: "/", omittingEmptySubsequences: false)
        guard parts.count == 3, let source = UInt16(parts[2]) else { return nil }
        self.init(
            account: AccountID(unchecked: String(parts[0])), device: DeviceID(unchecked: String(parts[1])),
            source: source)
    }
}
