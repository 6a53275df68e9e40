import ApusCore
import ApusWyoming
import ApusWyomingServer
import NIOCore
import Synchronization

/// A connection of a provider: performs what its machine says.
///
/// Concurrency model: on its connection's event loop. Workers answer through the connection.
final class ProviderConnection: WyomingServing {
    private var machine: ProviderConnectionStateMachine
    private let connection: WyomingServerConnection
    private let service: ProviderService
    private var utterance: Utterance?
    private var speechStop: StopFlag?

    init(_ connection: WyomingServerConnection, service: ProviderService) {
        (self.connection, self.service) = (connection, service)
        machine = ProviderConnectionStateMachine(info: service.info)
    }

    func received(_ message: WyomingMessage) { perform(machine.receive(message)) }

    func closed() { perform(machine.closed()) }

    private func perform(_ actions: [ProviderConnectionStateMachine.Action]) {
        for action in actions {
            switch action {
            case .reply(let message): connection.send(message)
            case .keepGrammar(let grammar): perform(machine.grammarFound(service.keep(grammar)))
            case .startUtterance(let hash, let format): start(Utterance(grammarHash: hash, format: format))
            case .hear(let audio): utterance?.add(.audio(audio))
            case .pause: utterance?.add(.pause)
            case .resume: utterance?.add(.resume)
            case .endUtterance: finishUtterance(.end)
            case .cancelUtterance: finishUtterance(.cancel)
            case .speak(let request): speak(request)
            case .cancelSpeech: speechStop?.set()
            }
        }
    }

    private func start(_ utterance: Utterance) {
        let isTaken = service.recognize(utterance) { [connection] message in connection.send(message) }
        if isTaken {
            self.utterance = utterance
        } else {
            perform(machine.utteranceRefused(isEnding: service.isEnding))
        }
    }

    private func finishUtterance(_ input: Utterance.Input) {
        utterance?.add(input)
        utterance = nil
    }

    private func speak(_ request: WyomingSynthesize) {
        let stop = StopFlag()
        speechStop = stop
        // SAFETY of the bound: it is used on its event loop only.
        let bound = NIOLoopBound(self, eventLoop: connection.eventLoop)
        let isTaken = service.speak(request, stop) { [connection] message in
            switch message {
            case .audioStop, .error:
                // Before the client has the message: it may send the next text at once.
                connection.eventLoop.execute { bound.value.machine.speechEnded() }
            default: break
            }
            connection.send(message)
        }
        if !isTaken { perform(machine.speechRefused(isEnding: service.isEnding)) }
    }
}

/// A flag that one thread sets and another one asks for.
final class StopFlag: Sendable {
    private let isOn = Atomic<Bool>(false)

    func set() { isOn.store(true, ordering: .relaxed) }

    var isSet: Bool { isOn.load(ordering: .relaxed) }
}
