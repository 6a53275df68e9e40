import ApusCluster
import ApusNode
import ApusStorage
import ServiceLifecycle

/// Step 3: the service, which the nodes of this binary carry.
struct DoorService: NodeService {
    private static let replicated = EntityDefinition.door(.door, name: "door", strength: .replicated)
    private static let recorded = EntityDefinition.door(.recordedDoor, name: "recorded door", strength: .recorded)
    private static let collection = EntityCollection<DoorState>("example-doors", kind: .recordedDoor, layout: 1)

    let records = RecordCatalogue([DoorService.collection])

    func register(with runtime: EntityRuntime) {
        runtime.register(Self.replicated)
        runtime.register(Self.recorded, in: Self.collection)
    }

    func work(of node: NodeContext) -> [any Service] { [DoorListener(node)] }
}
