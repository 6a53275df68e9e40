import ApusCore
import ApusWyoming
import Logging
import NIOCore
import Synchronization

/// A connection of a provider: reads events, and performs what its machine says.
///
/// Concurrency model: on its channel's event loop. Workers answer through ``ProviderReplies``.
final class ProviderHandler: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer
    typealias OutboundOut = ByteBuffer

    private var decoder = WyomingDecoder()
    private var machine: ProviderConnectionStateMachine
    private let service: ProviderService
    private var utterance: Utterance?
    private var speechStop: StopFlag?
    private var isClosed = false

    init(service: ProviderService) {
        self.service = service
        machine = ProviderConnectionStateMachine(info: service.info)
    }

    func channelActive(context: ChannelHandlerContext) {
        if !service.opened(context.channel) { context.close(promise: nil) }
    }

    func channelInactive(context: ChannelHandlerContext) {
        isClosed = true
        perform(machine.closed(), context)
        service.closed(context.channel)
        context.fireChannelInactive()
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        guard !isClosed else { return }
        do throws(ApusError) {
            try decoder.take(unwrapInboundIn(data)) { message throws(ApusError) in
                // A client that does not read its answers gets no more of them.
                guard context.channel.isWritable else { throw ApusError(.slowReader) }
                perform(machine.receive(message), context)
            }
        } catch {
            fail(error, context)
        }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }

    /// Where the next event begins is unknown after an error: the connection is closed.
    private func fail(_ error: any Error, _ context: ChannelHandlerContext) {
        isClosed = true
        let text = (error as? ApusError)?.description ?? "\(error)"
        service.log.info("A connection broke the protocol", metadata: ["error": "\(text)"])
        write(.error(text: text, code: "apus-protocol"), context.channel)
        context.close(promise: nil)
    }

    private func perform(_ actions: [ProviderConnectionStateMachine.Action], _ context: ChannelHandlerContext) {
        for action in actions {
            switch action {
            case .reply(let message): write(message, context.channel)
            case .keepGrammar(let grammar): perform(machine.grammarFound(service.keep(grammar)), context)
            case .startUtterance(let hash, let format): start(Utterance(grammarHash: hash, format: format), context)
            case .hear(let audio): utterance?.add(.audio(audio))
            case .pause: utterance?.add(.pause)
            case .resume: utterance?.add(.resume)
            case .endUtterance: finishUtterance(.end)
            case .cancelUtterance: finishUtterance(.cancel)
            case .speak(let request): speak(request, context)
            case .cancelSpeech: speechStop?.set()
            }
        }
    }

    private func start(_ utterance: Utterance, _ context: ChannelHandlerContext) {
        let channel = context.channel
        let isTaken = service.recognize(utterance) { message in Self.send(message, channel) }
        if isTaken {
            self.utterance = utterance
        } else {
            perform(machine.utteranceRefused(isEnding: service.isEnding), context)
        }
    }

    private func finishUtterance(_ input: Utterance.Input) {
        utterance?.add(input)
        utterance = nil
    }

    private func speak(_ request: WyomingSynthesize, _ context: ChannelHandlerContext) {
        let channel = context.channel
        let stop = StopFlag()
        speechStop = stop
        // SAFETY of the bound: the handler is used on its event loop only.
        let handler = NIOLoopBound(self, eventLoop: context.eventLoop)
        let isTaken = service.speak(request, stop) { message in
            switch message {
            case .audioStop, .error:
                // Before the client has the message: it may send the next text at once.
                channel.eventLoop.execute { handler.value.machine.speechEnded() }
            default: break
            }
            Self.send(message, channel)
        }
        if !isTaken { perform(machine.speechRefused(isEnding: service.isEnding), context) }
    }

    private func write(_ message: WyomingMessage, _ channel: any Channel) { Self.send(message, channel) }

    /// From any thread.
    private static func send(_ message: WyomingMessage, _ channel: any Channel) {
        var buffer = ByteBuffer()
        do {
            try message.event.encode(into: &buffer)
        } catch {
            channel.close(promise: nil)
            return
        }
        channel.writeAndFlush(buffer, promise: nil)
    }
}

/// A flag that one thread sets and another one asks for.
final class StopFlag: Sendable {
    private let isOn = Atomic<Bool>(false)

    func set() { isOn.store(true, ordering: .relaxed) }

    var isSet: Bool { isOn.load(ordering: .relaxed) }
}
