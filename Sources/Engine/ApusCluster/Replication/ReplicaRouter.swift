package import ApusTransport

/// Passes replication messages to their service, and other messages of the control lane to the next handler.
package struct ReplicaRouter: ControlHandler {
    private let replicas: ReplicaService
    private let next: any ControlHandler

    package init(_ replicas: ReplicaService, next: any ControlHandler) { (self.replicas, self.next) = (replicas, next) }

    package func received(_ request: InboundRequest) {
        if ClusterMethod.replication.contains(request.method) {
            replicas.received(request)
        } else {
            next.received(request)
        }
    }
}
