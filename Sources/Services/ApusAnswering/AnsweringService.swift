package import ApusCalls
import ApusChannels
package import ApusClientAPI
import ApusCluster
import ApusEvents
import ApusContract
package import ApusCore
import ApusMedia
import ApusSessions
package import ApusStorage
import CoreMetrics
import Foundation
import Logging
import NIOCore
package import ServiceLifecycle
import SwiftProtobuf
import Synchronization

/// Answering machines of devices and accounts (docs/answering-machine.md).
///
/// If no client accepts a call, the call's owner requests a recording of the caller from its own node. Messages are
/// records, so any node can read them.
///
/// Concurrency model: any thread. A `Mutex` guards the table of recordings.
package final class AnsweringService: NodeService, Service, AnsweringMachines {
    package static let name = "Answering machines"
    package static let records = AnsweringRecords.catalogue

    private struct Recording {
        var recorder: VoiceMessageRecorder
        var report: @Sendable (VoiceMessageReport) -> Void
        var isRunning = false
    }

    let configuration: AnsweringConfiguration
    let view: ClusterView
    let records: AnsweringRecords
    let sessions: SessionRecords
    private let channels: ChannelService
    private let group: any EventLoopGroup
    private let limited: LogLimiter
    private let events: EventService
    private let recordings = Mutex<[String: Recording]>([:])
    private let waiting = WorkQueue<VoiceMessageRecorder>(countMax: AnsweringService.waitingMax)

    private let stored = Counter(label: "apus_answering_messages_total", dimensions: [("result", "stored")])
    private let empty = Counter(label: "apus_answering_messages_total", dimensions: [("result", "empty")])
    private let failed = Counter(label: "apus_answering_messages_total", dimensions: [("result", "failed")])
    private let cut = Counter(label: "apus_answering_messages_cut_total")
    private let full = Counter(label: "apus_answering_refused_total")
    private let active = Gauge(label: "apus_answering_recordings")

    /// The most recordings, waiting or running. A request beyond it has no effect; the call repeats it.
    private static let waitingMax = 1024
    private static let cleanInterval = Duration.seconds(60)

    package init(_ configuration: AnsweringConfiguration, of node: NodeContext) throws(ApusError) {
        (self.configuration, view, group, limited) = (configuration, node.view, node.group, node.limited)
        channels = try node.ports.one(ChannelService.self)
        events = try node.ports.one(EventService.self)
        (records, sessions) = (AnsweringRecords(node.records), SessionRecords(node.records))
        node.ports.provide(self, as: (any AnsweringMachines).self)
    }

    package var work: [any Service] { [self] }

    // MARK: - For calls

    package func machine(of parties: [CallParty]) async -> CallAnswering? {
        do throws(ApusError) {
            for party in parties {
                if let found = try await machine(of: party) { return found }
            }
        } catch {
            // The call is placed without an answering machine.
            limited.log(.warning, "The answering machine of a call cannot be read", metadata: Logger.facts(of: error))
        }
        return nil
    }

    private func machine(of party: CallParty) async throws(ApusError) -> CallAnswering? {
        guard let machine = try await records.machine(party.name)?.body, machine.isEnabled else { return nil }
        let account = try await account(of: party)
        guard machine.isOf(account) else { return nil }
        if machine.account.isEmpty, !account.isEmpty {
            // An earlier release stored the machine without an account. It belongs to this account from now on.
            try await records.change(party.name, of: account) { _ in }
        }
        guard try await !isFull(party, of: account) else {
            full.increment()
            return nil
        }
        return .with {
            $0.account = account
            ($0.party, $0.afterMs, $0.lengthMs, $0.keepMs) = (party, machine.afterMs, machine.lengthMs, machine.keepMs)
            ($0.greeting, $0.greetingPieces) = (machine.greeting, machine.greetingPieces)
        }
    }

    /// True if the machine cannot take another message, because its messages or the account's bytes reach their limit.
    /// The message of this call does not count, nor do those of an account to which the device belonged before.
    private func isFull(_ party: CallParty, of account: String, except call: String = "") async throws(ApusError)
        -> Bool
    {
        let newest = try await records.page(of: party.name, after: "", limit: configuration.messagesMax + 1).messages
        let count = newest.count { $0.account == account && $0.call != call }
        if count >= configuration.messagesMax { return true }
        // If the recorder continues an earlier one, the bytes of this call's message are already counted.
        if newest.contains(where: { $0.call == call }) { return false }
        return try await messageByteCount(of: account) == 0
    }

    /// The largest size of a new message, in bytes; 0 if the account has no room for one.
    func messageByteCount(of account: String) async throws(ApusError) -> UInt64 {
        let bytes = try await records.bytes(of: account)
        let room = configuration.shares.room(own: bytes.own, all: bytes.all)
        let largest = UInt64(configuration.messageByteCountMax)
        return room < min(largest, AnsweringConfiguration.messageByteCountMin) ? 0 : min(largest, room)
    }

    package func record(_ recording: CallVoiceMessage, report: @escaping @Sendable (VoiceMessageReport) -> Void) {
        let recorder = recordings.withLock { recordings -> VoiceMessageRecorder? in
            if let known = recordings[recording.call] {
                if recording.over { known.recorder.end() }
                return nil
            }
            guard recordings.count < Self.waitingMax else { return nil }
            // The call repeats its request.
            let account = recording.answering.account
            let share = max(1, configuration.recordingsMax / AnsweringConfiguration.accountPart)
            let used = recordings.values.count { $0.recorder.recording.answering.account == account }
            guard account.isEmpty || used < share else { return nil }
            let recorder = VoiceMessageRecorder(recording, self)
            if recording.over { recorder.end() }
            recordings[recording.call] = Recording(recorder: recorder, report: report)
            return recorder
        }
        if let recorder { waiting.add(recorder) }
    }

    /// Records messages, stores abandoned ones, and removes expired ones, until the node stops.
    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask {
                    await self.waiting.run(atMost: self.configuration.recordingsMax) { await self.record($0) }
                }
                group.addTask { await self.clean() }
            }
        }
    }

    private func record(_ recorder: VoiceMessageRecorder) async {
        let call = recorder.recording.call
        let report = recordings.withLock { recordings in
            active.record(recordings.count)
            return recordings[call]?.report
        }
        guard let report else { return }
        let answering = recorder.recording.answering
        let greeting = await greeting(of: recorder.recording)
        do throws(ApusError) {
            var outcome = VoiceMessageRecorder.Outcome.empty
            // Other callers may have left messages since the machine answered.
            if try await isFull(answering.party, of: answering.account, except: call) {
                full.increment()
                report(.full)
            } else {
                outcome = try await recorder.run(greeting) {
                    self.cut.increment()
                    report(.full)
                }
            }
            switch outcome {
            case .stored(let message):
                stored.increment()
                await notify(message)
                report(.stored)
            case .empty:
                empty.increment()
                report(.stored)
            case .full:
                full.increment()
                report(.full)
            case .left: break
            }
        } catch {
            failed.increment()
            limited.log(.error, "A message cannot be stored", metadata: Logger.facts(of: error))
        }
        greeting?.stop()
        recordings.withLock { recordings in
            recordings[call] = nil
            active.record(recordings.count)
        }
    }

    /// Notifies the account of a message, again if the node dies. A message without an event is listed nevertheless.
    private func notify(_ message: AnsweringMessage) async {
        guard let new = VoiceMessageNotice(message) else { return }
        do throws(ApusError) {
            // Every repetition has the same id, so the account gets one event per message.
            let request = RequestID(high: StableHash.hash(new.id), low: StableHash.hash(new.id, seed: 1))
            try await events.notify(
                new.account, "message", json: new.json, device: new.machine ?? new.callerDevice, request: request)
        } catch {
            limited.log(
                .warning, "An account was not notified of a message", metadata: Logger.facts(of: error))
        }
    }

    private func clean() async {
        // Nodes that start together clean up at different times.
        var pause = Self.cleanInterval * Double.random(in: 0.1...1)
        while (try? await Task.sleep(for: pause)) != nil {
            // If the store is not available, the next run tries again.
            for message in (try? await records.storeAbandoned(at: view.clock.wallMilliseconds())) ?? [] {
                stored.increment()
                await notify(message)
            }
            try? await records.removeExpired(at: view.clock.wallMilliseconds())
            pause = Self.cleanInterval
        }
    }

    // MARK: - For recorders

    func noteFailure(_ error: ApusError) {
        limited.log(.warning, "A message is recorded again from its last frame", metadata: Logger.facts(of: error))
    }

    /// The account to which a party belongs; empty for a device that is not bound to one.
    func account(of party: CallParty) async throws(ApusError) -> String {
        guard party.kind == .device else { return party.id }
        return try await sessions.record(of: DeviceID(unchecked: party.id))?.account?.rawValue ?? ""
    }

    /// Joins the channel of a call's caller.
    ///
    /// - Parameter onFirst: called on the event loop with the first frame.
    func join(
        _ call: String, after: FramePosition, onFirst: @escaping @Sendable (any EventLoop) -> Void
    ) async throws(ApusError) -> FrameTap {
        try await channels.tap(
            ChannelID(call: CallID(unchecked: call), side: .caller), after: after, on: group.next(),
            byteCountMax: AnsweringConfiguration.waitingByteCountMax, onFirst: onFirst)
    }

    /// The greeting of a machine; nil if it has none, if it cannot be played, or if the call is over.
    private func greeting(of recording: CallVoiceMessage) async -> FramePlayer? {
        let answering = recording.answering
        guard answering.greetingPieces != 0, !recording.over else { return nil }
        do throws(ApusError) {
            let pieces = try await records.greetingPieces(
                answering.greeting, of: answering.party.name, count: answering.greetingPieces)
            let frames = try StoredFrames.frames(of: pieces)
            let account = AccountID(rawValue: try await account(of: answering.party))
            let channel = ChannelID(call: CallID(unchecked: recording.call), side: .winner)
            return FramePlayer(frames, to: channel, of: account, at: channels, on: group.next())
        } catch {
            limited.log(.warning, "A greeting cannot be played", metadata: Logger.facts(of: error))
            return nil
        }
    }
}
