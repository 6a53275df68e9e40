import ApusChannels
package import ApusClientAPI
import ApusCluster
import ApusContract
package import ApusCore
import ApusDialogs
import ApusMedia
import ApusMediaAccess
import ApusSessions
import ApusThings
import ApusWyoming
import CoreMetrics
import Logging
import NIOCore
package import ServiceLifecycle
import SwiftProtobuf
import Synchronization

/// Spoken dialogs at this node (VA-7, VA-8, docs/voice.md): hears what a person says to a device, and speaks the reply.
///
/// The node of the device's connection does it. It joins the microphone's channel as a recorder, so the death of the
/// channel's primary does not matter to it. If it dies itself, the device repeats its request at another node, which
/// hears the utterance again from the channel. The dialog knows the sentence by its id, so nothing is done twice.
///
/// Concurrency model: any thread. `Mutex`es guard what is in progress, and the kept replies.
package final class SpeechService: NodeService, Service {
    package static let name = "Speech"

    private struct Listening {
        let id: String
        let account: AccountID
        let listener: Listener
    }

    private struct ReplyKey: Hashable {
        let text: ExactText
        let language: String
    }

    private let configuration: SpeechConfiguration
    private let channels: ChannelService
    private let dialogs: DialogService
    private let providers: SpeechProviders
    private let group: any EventLoopGroup
    private let limited: LogLimiter
    private let grammars = Mutex(RecentCache<DialogGrammar.Key, WyomingGrammar?>(countMax: SpeechService.grammarsMax))
    private let replies: Mutex<RecentCache<ReplyKey, Spoken>>
    private let listening = Mutex<[DeviceID: Listening]>([:])
    private let players: ReplyPlayers
    private let runningGauge = Gauge(label: "apus_speech_running")

    /// The homes and languages whose sentences are kept.
    private static let grammarsMax = 64
    /// Longer replies are not kept, in samples: ten seconds at 24,000 a second.
    private static let keptSampleCountMax = 240_000
    /// The bytes of sound that wait for the listener.
    private static let tapByteCountMax = 1 << 20

    package init(_ configuration: SpeechConfiguration, of node: NodeContext) throws(ApusError) {
        (self.configuration, group, limited) = (configuration, node.group, node.limited)
        channels = try node.ports.one(ChannelService.self)
        players = ReplyPlayers(channels, on: node.group)
        dialogs = try node.ports.one(DialogService.self)
        providers = SpeechProviders(configuration.providers, on: node.group)
        replies = Mutex(RecentCache(countMax: configuration.repliesMax))
    }

    package var work: [any Service] { [self] }

    /// Watches the providers until the node stops.
    package func run() async throws {
        await cancelWhenGracefulShutdown { await self.providers.run() }
    }

    package func add(to api: inout ClientAPI) {
        api.addSchemas(speechSchemas)
        api.on(ClientListenRequest.self) { [self] request, call throws(ApusError) in
            try await listen(request, call)
        }
    }

    // MARK: - Listening

    private func listen(
        _ request: ClientListenRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientListenResponse {
        guard let device = call.session.device else {
            throw ApusError(.notAllowed, "only a device lets the cluster listen")
        }
        let listener = Listener()
        let account = call.session.account
        // A tap during an utterance begins another one (VA-7).
        try begin(Listening(id: request.id, account: account, listener: listener), device)
        defer { end(listener, device) }
        if !request.whileSpeaking { players.stop(device) }
        let (isAsked, stops): (Bool, UInt64)
        var heard = ""
        switch try await dialogs.hears(
            request.id, request.language, on: device, onlyLooks: request.whileSpeaking, call)
        {
        case .ended(let turn): return await again(turn, request, device, listener, call)
        case .listens(let id, let asks, let count): (heard, isAsked, stops) = (id, asks, count)
        }
        do throws(ApusError) {
            let (response, endedAt) =
                try await request.whileSpeaking
                ? interrupt(request, device, isAsked, listener, call)
                : hear(request, device, isAsked, listener, call)
            guard !response.heard.isEmpty else {
                if !request.whileSpeaking { await dialogs.hearsNothing(heard, on: device) }
                return response
            }
            if request.whileSpeaking {
                switch try await dialogs.hears(request.id, request.language, on: device, stops: stops, call) {
                case .ended(let turn): return await again(turn, request, device, listener, call)
                case .listens(let id, _, _): heard = id
                }
            }
            return try await carryOut(request, device, listener, response, heard: heard, since: endedAt, call)
        } catch {
            // The utterance that ended this one, or the same one at another node after a connection was lost, may
            // continue with its listening.
            if !heard.isEmpty, !listener.isStopped, error.code != .cancelled {
                await dialogs.hearsNothing(heard, on: device)
            }
            throw error
        }
    }

    /// The device repeats its request: its node has died.
    private func again(
        _ turn: ClientDialogTurn, _ request: ClientListenRequest, _ device: DeviceID, _ listener: Listener,
        _ call: ClientCall
    ) async -> ClientListenResponse {
        let response = ClientListenResponse.with { ($0.turn, $0.heard) = (turn, turn.text) }
        return await speak(request, device, listener, response, since: .now(), call)
    }

    /// Listens while a reply is spoken. It pauses while the person makes a sound, and ends if that has words. Otherwise
    /// it continues.
    private func interrupt(
        _ request: ClientListenRequest, _ device: DeviceID, _ isAsked: Bool, _ listener: Listener, _ call: ClientCall
    ) async throws(ApusError) -> (response: ClientListenResponse, endedAt: MonotonicTime) {
        // An utterance that has ended this one has its own pauses.
        defer { if !listener.isStopped { players.resume(device) } }
        var (response, endedAt) = try await hear(request, device, isAsked, listener, call) { [players] hasBegun in
            hasBegun ? players.pause(device) : players.resume(device)
        }
        let isEcho = players.isEcho(response.heard, device)
        if isEcho { response.heard = "" }
        Self.interruptions[isEcho ? .echo : response.heard.isEmpty ? .noWords : .words]?.increment()
        if response.heard.isEmpty { response.replyGoesOn = true } else { players.stop(device) }
        return (response, endedAt)
    }

    /// Listens until the end of the sentence, and has it recognized.
    private func hear(
        _ request: ClientListenRequest, _ device: DeviceID, _ isAsked: Bool, _ listener: Listener, _ call: ClientCall,
        sounded: (Bool) -> Void = { _ in }
    ) async throws(ApusError) -> (response: ClientListenResponse, endedAt: MonotonicTime) {
        let account = call.session.account
        let grammar = try await dialogs.grammar(request.language, account, isAsked: isAsked)
        let recognition = Recognition(providers, grammar.language, try await sentences(grammar))
        let before = FramePosition(epoch: request.epoch, sequence: request.sequence).predecessor
        let tap = try await channels.tap(
            ChannelID(microphoneOf: device), of: account, after: before, on: group.next(),
            byteCountMax: Self.tapByteCountMax)
        defer { tap.close() }
        let result = try await listener.run(
            tap, recognition, configuration.hearing, recognitionTime: configuration.recognitionTime,
            isComplete: grammar.isComplete, sounded: sounded, until: call.deadline)
        Self.ends[result.end]?.increment()
        var response = ClientListenResponse()
        response.end = ClientHearingEnd(result.end)
        response.times.spoken = UInt32(clamping: result.spoken / 1000)
        response.times.waited = UInt32(clamping: result.waited / 1000)
        response.times.recognized = UInt32((MonotonicTime.now() - result.endedAt).milliseconds)
        response.heard = result.heard.text(in: grammar).cut(to: DialogService.textByteCountMax)
        response.candidates = result.heard.candidates.map { candidate in
            .with { ($0.text, $0.score) = (candidate.text.cut(to: DialogService.textByteCountMax), candidate.score) }
        }
        return (response, result.endedAt)
    }

    private func carryOut(
        _ request: ClientListenRequest, _ device: DeviceID, _ listener: Listener, _ response: ClientListenResponse,
        heard listening: String, since: MonotonicTime, _ call: ClientCall
    ) async throws(ApusError) -> ClientListenResponse {
        var response = response
        response.turn = try await dialogs.say(
            response.heard, id: request.id, on: device, language: request.language, context: request.context,
            heard: listening,
            call)
        response.times.carriedOut = UInt32((MonotonicTime.now() - since).milliseconds)
        return await speak(request, device, listener, response, since: since, call)
    }

    private func begin(_ new: Listening, _ device: DeviceID) throws(ApusError) {
        let (isFull, count) = listening.withLock { all in
            let others = all.filter { $0.key != device }
            guard others.count < configuration.runningMax,
                others.values.count(where: { $0.account == new.account }) < configuration.accountRunningMax
            else { return (true, all.count) }
            all.updateValue(new, forKey: device)?.listener.stop()
            return (false, all.count)
        }
        runningGauge.record(count)
        guard !isFull else {
            throw ApusError(.overloaded, "the node listens to too many devices of the account, or of all; try again")
        }
    }

    private func end(_ listener: Listener, _ device: DeviceID) {
        let count = listening.withLock { all in
            if all[device]?.listener === listener { all[device] = nil }
            return all.count
        }
        runningGauge.record(count)
    }

    /// The sentences of a grammar for the providers; nil if it has none.
    private func sentences(_ grammar: DialogGrammar) async throws(ApusError) -> WyomingGrammar? {
        if let known = grammars.withLock({ $0[grammar.key] }) { return known }
        return try await offEventLoop { [self] () throws(ApusError) -> WyomingGrammar? in
            // Another device of the account may have waited for the same.
            if let known = grammars.withLock({ $0[grammar.key] }) { return known }
            let sentences = grammar.sentences(
                countMax: WyomingGrammar.sentenceCountMax, byteCountMax: WyomingGrammar.byteCountMax,
                sentenceByteCountMax: WyomingGrammar.sentenceByteCountMax)
            let jsgf = grammar.jsgf(byteCountMax: WyomingGrammar.jsgfByteCountMax)
            let made = sentences.isEmpty ? nil : try WyomingGrammar(sentences: sentences, jsgf: jsgf)
            grammars.withLock { $0[grammar.key] = .some(made) }
            return made
        }
    }

    // MARK: - Speaking

    /// Speaks the reply of a turn. Without a provider for its language, the reply remains a text.
    private func speak(
        _ request: ClientListenRequest, _ device: DeviceID, _ listener: Listener, _ response: ClientListenResponse,
        since: MonotonicTime, _ call: ClientCall
    ) async -> ClientListenResponse {
        var response = response
        let (text, language) = (response.turn.reply, response.turn.language)
        guard !request.isSilent, !text.isEmpty, response.turn.outcome != .interrupted else { return response }
        do throws(ApusError) {
            let elapsed = Duration.milliseconds(Int64(request.playedMs))
            let parts = elapsed > .zero || known(text, language) != nil ? [text] : ReplyParts.parts(of: text)
            var spoken = try await spoken(parts[0], language, until: call.deadline, keeps: parts.count == 1)
            // The microphone may be open for the next sentence.
            guard !listener.isStopped else { return response }
            let player = players.play(
                spoken, text, to: device, of: call.session.account, elapsed: elapsed, isComplete: parts.count == 1)
            response.times.replyBegan = UInt32((MonotonicTime.now() - since).milliseconds)
            if parts.count > 1 {
                let isWhole = await speak(parts.dropFirst(), language, after: &spoken, player, device, call)
                if isWhole { keep(spoken, text, language) }
            }
            response.replyMs = UInt32(spoken.duration.milliseconds)
        } catch {
            limited.log(.warning, "A reply cannot be spoken", metadata: Logger.facts(of: error))
        }
        return response
    }

    /// Speaks the further parts of a reply while the first one is played. A reply that ends before, since a part cannot
    /// be spoken, has its end mark there.
    ///
    /// - Parameter spoken: what there is, to which the parts are added.
    /// - Returns: whether all parts were spoken.
    private func speak(
        _ parts: ArraySlice<String>, _ language: String, after spoken: inout Spoken, _ player: FramePlayer,
        _ device: DeviceID, _ call: ClientCall
    ) async -> Bool {
        defer { players.finish(player, device, spoken) }
        for part in parts {
            // A person may have interrupted it, or the device listens for the next sentence.
            guard players.isPlaying(player, device) else { return false }
            do throws(ApusError) {
                let next = try await providers.speak(part, language, until: call.deadline)
                    .converted(to: spoken.sampleRate)
                player.append(next.frames(from: spoken.samples.count), isLast: false)
                spoken.append(next.samples)
            } catch {
                limited.log(.warning, "A reply cannot be spoken to its end", metadata: Logger.facts(of: error))
                return false
            }
        }
        return true
    }

    private func known(_ text: String, _ language: String) -> Spoken? {
        replies.withLock { $0[ReplyKey(text: ExactText(text), language: language)] }
    }

    private func keep(_ spoken: Spoken, _ text: String, _ language: String) {
        guard spoken.samples.count <= Self.keptSampleCountMax else { return }
        replies.withLock { $0[ReplyKey(text: ExactText(text), language: language)] = spoken }
    }

    private func spoken(
        _ text: String, _ language: String, until deadline: MonotonicTime, keeps: Bool
    ) async throws(ApusError) -> Spoken {
        if let known = known(text, language) { return known }
        let spoken = try await providers.speak(text, language, until: deadline)
        if keeps { keep(spoken, text, language) }
        return spoken
    }

    // MARK: - Metrics

    private static let ends: [HearingEnd: Counter] = Dictionary(
        uniqueKeysWithValues: HearingEnd.allCases.map { end in
            (end, SpeechService.counter("\(end)"))
        })

    /// What became of a reply while a person made a sound.
    private enum Interruption: String, CaseIterable {
        case words, noWords, echo
    }

    private static let interruptions: [Interruption: Counter] = Dictionary(
        uniqueKeysWithValues: Interruption.allCases.map { outcome in
            (outcome, Counter(label: "apus_speech_interruptions_total", dimensions: [("outcome", outcome.rawValue)]))
        })

    private static func counter(_ end: String) -> Counter {
        Counter(label: "apus_speech_utterances_total", dimensions: [("end", end)])
    }
}

extension Heard {
    /// The text that is said to the dialog; empty: none. What the provider has refused is not carried out, although its
    /// free text may be a sentence of the home: it is for the skill, or is not understood.
    fileprivate func text(in grammar: DialogGrammar) -> String {
        guard text.isEmpty else { return text }
        return grammar.has(free) ? "" : free
    }
}

extension String {
    /// The beginning with at most this many bytes, in whole characters.
    fileprivate func cut(to byteCountMax: Int) -> String {
        var text = self
        while text.utf8.count > byteCountMax { text.removeLast() }
        return text
    }
}

extension ClientHearingEnd {
    fileprivate init(_ end: HearingEnd) {
        self =
            switch end {
            case .sentence: .sentence
            case .silence: .silence
            case .steady: .steady
            case .tooLong: .tooLong
            case .nothing: .nothing
            case .microphone: .microphone
            }
    }
}
