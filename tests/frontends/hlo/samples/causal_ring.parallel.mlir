module @jit_g attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["sp"=2]> {stablehlo.mesh = {axes = [{name = "sp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<8x4xf32>, %arg1: tensor<8x4xf32>, %arg2: tensor<8x4xf32>, %arg3: tensor<8x4xf32>) -> (tensor<8x4xf32> {jax.result_info = "result[0]"}, tensor<8x4xf32> {jax.result_info = "result[1]"}, tensor<8x4xf32> {jax.result_info = "result[2]"}, tensor<8x4xf32> {jax.result_info = "result[3]"}) {
    %0:4 = sdy.manual_computation(%arg0, %arg1, %arg2, %arg3) in_shardings=[<@mesh, [{"sp"}, {}]>, <@mesh, [{"sp"}, {}]>, <@mesh, [{"sp"}, {}]>, <@mesh, [{"sp"}, {}]>] out_shardings=[<@mesh, [{"sp"}, {}]>, <@mesh, [{"sp"}, {}]>, <@mesh, [{"sp"}, {}]>, <@mesh, [{"sp"}, {}]>] manual_axes={"sp"} (%arg4: tensor<4x4xf32>, %arg5: tensor<4x4xf32>, %arg6: tensor<4x4xf32>, %arg7: tensor<4x4xf32>) {
      %c = stablehlo.constant dense<1> : tensor<ui32>
      %c_0 = stablehlo.constant dense<2> : tensor<ui32>
      %1 = stablehlo.partition_id : tensor<ui32>
      %2 = stablehlo.divide %1, %c : tensor<ui32>
      %3 = stablehlo.remainder %2, %c_0 : tensor<ui32>
      %4 = stablehlo.convert %3 : (tensor<ui32>) -> tensor<i32>
      %cst = stablehlo.constant dense<-1.000000e+30> : tensor<f32>
      %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4xf32>
      %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %6 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4xf32>
      %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %7 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %8 = stablehlo.iota dim = 0 : tensor<2xi32>
      %c_3 = stablehlo.constant dense<2> : tensor<i32>
      %9:2 = func.call @remainder(%c_3) : (tensor<i32>) -> (tensor<i32>, tensor<i1>)
      %c_4 = stablehlo.constant dense<4> : tensor<i32>
      %10 = stablehlo.multiply %4, %c_4 : tensor<i32>
      %11 = stablehlo.iota dim = 0 : tensor<4xi32>
      %12 = stablehlo.broadcast_in_dim %11, dims = [0] : (tensor<4xi32>) -> tensor<4x1xi32>
      %13 = stablehlo.broadcast_in_dim %10, dims = [] : (tensor<i32>) -> tensor<4x1xi32>
      %14 = stablehlo.add %13, %12 : tensor<4x1xi32>
      %15 = stablehlo.iota dim = 0 : tensor<4xi32>
      %cst_5 = stablehlo.constant dense<-1.000000e+30> : tensor<f32>
      %16:2 = func.call @_where_0(%cst_5) : (tensor<f32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
      %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %17 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<2x4x4xf32>
      %c_7 = stablehlo.constant dense<false> : tensor<i1>
      %18 = stablehlo.broadcast_in_dim %c_7, dims = [] : (tensor<i1>) -> tensor<2x4x4xi1>
      %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %19 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<2x4x4xf32>
      %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %20 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
      %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %21 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %22 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<2x4x4xf32>
      %c_12 = stablehlo.constant dense<0> : tensor<i32>
      %23:20 = stablehlo.while(%iterArg = %8, %iterArg_22 = %14, %iterArg_23 = %4, %iterArg_24 = %9#0, %iterArg_25 = %9#1, %iterArg_26 = %15, %iterArg_27 = %arg4, %iterArg_28 = %16#1, %iterArg_29 = %c_12, %iterArg_30 = %arg5, %iterArg_31 = %arg6, %iterArg_32 = %5, %iterArg_33 = %6, %iterArg_34 = %7, %iterArg_35 = %17, %iterArg_36 = %18, %iterArg_37 = %19, %iterArg_38 = %20, %iterArg_39 = %21, %iterArg_40 = %22) : tensor<2xi32>, tensor<4x1xi32>, tensor<i32>, tensor<i32>, tensor<i1>, tensor<4xi32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<2x4x4xf32>, tensor<2x4x4xi1>, tensor<2x4x4xf32>, tensor<2x4xf32>, tensor<2x4x1xf32>, tensor<2x4x4xf32>
      cond {
        %c_41 = stablehlo.constant dense<2> : tensor<i32>
        %45 = stablehlo.compare LT, %iterArg_29, %c_41, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %45 : tensor<i1>
      } do {
        %45 = func.call @dynamic_index_in_dim(%iterArg, %iterArg_29) : (tensor<2xi32>, tensor<i32>) -> tensor<i32>
        %46:11 = func.call @closed_call(%iterArg_22, %iterArg_23, %iterArg_24, %iterArg_25, %iterArg_26, %iterArg_27, %iterArg_28, %iterArg_30, %iterArg_31, %iterArg_32, %iterArg_33, %iterArg_34, %45) : (tensor<4x1xi32>, tensor<i32>, tensor<i32>, tensor<i1>, tensor<4xi32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<i32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xi1>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x1xf32>, tensor<4x4xf32>)
        %47 = func.call @dynamic_update_index_in_dim(%iterArg_35, %46#5, %iterArg_29) : (tensor<2x4x4xf32>, tensor<4x4xf32>, tensor<i32>) -> tensor<2x4x4xf32>
        %48 = func.call @dynamic_update_index_in_dim_3(%iterArg_36, %46#6, %iterArg_29) : (tensor<2x4x4xi1>, tensor<4x4xi1>, tensor<i32>) -> tensor<2x4x4xi1>
        %49 = func.call @dynamic_update_index_in_dim(%iterArg_37, %46#7, %iterArg_29) : (tensor<2x4x4xf32>, tensor<4x4xf32>, tensor<i32>) -> tensor<2x4x4xf32>
        %50 = func.call @dynamic_update_index_in_dim_4(%iterArg_38, %46#8, %iterArg_29) : (tensor<2x4xf32>, tensor<4xf32>, tensor<i32>) -> tensor<2x4xf32>
        %51 = func.call @dynamic_update_index_in_dim_5(%iterArg_39, %46#9, %iterArg_29) : (tensor<2x4x1xf32>, tensor<4x1xf32>, tensor<i32>) -> tensor<2x4x1xf32>
        %52 = func.call @dynamic_update_index_in_dim(%iterArg_40, %46#10, %iterArg_29) : (tensor<2x4x4xf32>, tensor<4x4xf32>, tensor<i32>) -> tensor<2x4x4xf32>
        %c_41 = stablehlo.constant dense<1> : tensor<i32>
        %53 = stablehlo.add %iterArg_29, %c_41 : tensor<i32>
        stablehlo.return %iterArg, %iterArg_22, %iterArg_23, %iterArg_24, %iterArg_25, %iterArg_26, %iterArg_27, %iterArg_28, %53, %46#0, %46#1, %46#2, %46#3, %46#4, %47, %48, %49, %50, %51, %52 : tensor<2xi32>, tensor<4x1xi32>, tensor<i32>, tensor<i32>, tensor<i1>, tensor<4xi32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<2x4x4xf32>, tensor<2x4x4xi1>, tensor<2x4x4xf32>, tensor<2x4xf32>, tensor<2x4x1xf32>, tensor<2x4x4xf32>
      }
      %24 = stablehlo.broadcast_in_dim %23#12, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
      %25 = stablehlo.broadcast_in_dim %24, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x4xf32>
      %26 = stablehlo.divide %23#13, %25 : tensor<4x4xf32>
      %27 = stablehlo.multiply %24, %24 : tensor<4x1xf32>
      %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %28 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
      %29 = stablehlo.divide %28, %27 : tensor<4x1xf32>
      %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %30 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<4xf32>
      %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %31 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %32 = stablehlo.broadcast_in_dim %29, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x4xf32>
      %33 = stablehlo.multiply %arg7, %32 : tensor<4x4xf32>
      %34 = stablehlo.multiply %33, %23#13 : tensor<4x4xf32>
      %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %35 = stablehlo.reduce(%34 init: %cst_16) applies stablehlo.add across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
      %36 = stablehlo.reshape %35 : (tensor<4xf32>) -> tensor<4x1xf32>
      %37 = stablehlo.negate %36 : tensor<4x1xf32>
      %38 = stablehlo.broadcast_in_dim %24, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x4xf32>
      %39 = stablehlo.divide %arg7, %38 : tensor<4x4xf32>
      %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %40 = stablehlo.reduce(%37 init: %cst_17) applies stablehlo.add across dimensions = [1] : (tensor<4x1xf32>, tensor<f32>) -> tensor<4xf32>
      %cst_18 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %41 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %cst_19 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %42 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %43 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %c_21 = stablehlo.constant dense<0> : tensor<i32>
      %44:14 = stablehlo.while(%iterArg = %23#14, %iterArg_22 = %23#15, %iterArg_23 = %23#16, %iterArg_24 = %23#17, %iterArg_25 = %23#18, %iterArg_26 = %23#19, %iterArg_27 = %arg4, %iterArg_28 = %16#0, %iterArg_29 = %c_21, %iterArg_30 = %43, %iterArg_31 = %41, %iterArg_32 = %42, %iterArg_33 = %40, %iterArg_34 = %39) : tensor<2x4x4xf32>, tensor<2x4x4xi1>, tensor<2x4x4xf32>, tensor<2x4xf32>, tensor<2x4x1xf32>, tensor<2x4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>
      cond {
        %c_35 = stablehlo.constant dense<2> : tensor<i32>
        %45 = stablehlo.compare LT, %iterArg_29, %c_35, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %45 : tensor<i1>
      } do {
        %c_35 = stablehlo.constant dense<2> : tensor<i32>
        %45 = stablehlo.subtract %c_35, %iterArg_29 : tensor<i32>
        %c_36 = stablehlo.constant dense<1> : tensor<i32>
        %46 = stablehlo.subtract %45, %c_36 : tensor<i32>
        %47 = func.call @dynamic_index_in_dim_6(%iterArg, %46) : (tensor<2x4x4xf32>, tensor<i32>) -> tensor<4x4xf32>
        %48 = func.call @dynamic_index_in_dim_7(%iterArg_22, %46) : (tensor<2x4x4xi1>, tensor<i32>) -> tensor<4x4xi1>
        %49 = func.call @dynamic_index_in_dim_6(%iterArg_23, %46) : (tensor<2x4x4xf32>, tensor<i32>) -> tensor<4x4xf32>
        %50 = func.call @dynamic_index_in_dim_8(%iterArg_24, %46) : (tensor<2x4xf32>, tensor<i32>) -> tensor<4xf32>
        %51 = func.call @dynamic_index_in_dim_9(%iterArg_25, %46) : (tensor<2x4x1xf32>, tensor<i32>) -> tensor<4x1xf32>
        %52 = func.call @dynamic_index_in_dim_6(%iterArg_26, %46) : (tensor<2x4x4xf32>, tensor<i32>) -> tensor<4x4xf32>
        %53:5 = func.call @closed_call_10(%iterArg_27, %iterArg_28, %iterArg_30, %iterArg_31, %iterArg_32, %iterArg_33, %iterArg_34, %47, %48, %49, %50, %51, %52) : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xi1>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x1xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>)
        %c_37 = stablehlo.constant dense<1> : tensor<i32>
        %54 = stablehlo.add %iterArg_29, %c_37 : tensor<i32>
        stablehlo.return %iterArg, %iterArg_22, %iterArg_23, %iterArg_24, %iterArg_25, %iterArg_26, %iterArg_27, %iterArg_28, %54, %53#0, %53#1, %53#2, %53#3, %53#4 : tensor<2x4x4xf32>, tensor<2x4x4xi1>, tensor<2x4x4xf32>, tensor<2x4xf32>, tensor<2x4x1xf32>, tensor<2x4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>
      }
      sdy.return %26, %44#9, %44#10, %44#11 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
    } : (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>)
    return %0#0, %0#1, %0#2, %0#3 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  }
  func.func private @remainder(%arg0: tensor<i32>) -> (tensor<i32>, tensor<i1>) {
    %0 = stablehlo.convert %arg0 : tensor<i32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.compare EQ, %0, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %2 = call @_where(%1, %c_0, %0) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %3 = stablehlo.compare LT, %2, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    return %2, %3 : tensor<i32>, tensor<i1>
  }
  func.func private @_where(%arg0: tensor<i1>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<i32>
    return %0 : tensor<i32>
  }
  func.func private @_where_0(%arg0: tensor<f32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %0 = stablehlo.convert %arg0 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    return %2, %1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<2xi32>, %arg1: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.dynamic_slice %arg0, %arg1, sizes = [1] : (tensor<2xi32>, tensor<i32>) -> tensor<1xi32>
    %1 = stablehlo.reshape %0 : (tensor<1xi32>) -> tensor<i32>
    return %1 : tensor<i32>
  }
  func.func private @closed_call(%arg0: tensor<4x1xi32>, %arg1: tensor<i32>, %arg2: tensor<i32>, %arg3: tensor<i1>, %arg4: tensor<4xi32>, %arg5: tensor<4x4xf32>, %arg6: tensor<4x4xf32>, %arg7: tensor<4x4xf32>, %arg8: tensor<4x4xf32>, %arg9: tensor<4xf32>, %arg10: tensor<4xf32>, %arg11: tensor<4x4xf32>, %arg12: tensor<i32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xi1>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x1xf32>, tensor<4x4xf32>) {
    %0 = stablehlo.transpose %arg7, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.dot_general %arg5, %0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.subtract %arg1, %arg12 : tensor<i32>
    %3 = call @remainder_1(%2, %arg2, %arg3) : (tensor<i32>, tensor<i32>, tensor<i1>) -> tensor<i32>
    %c = stablehlo.constant dense<4> : tensor<i32>
    %4 = stablehlo.multiply %3, %c : tensor<i32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<i32>) -> tensor<4xi32>
    %6 = stablehlo.add %5, %arg4 : tensor<4xi32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [1] : (tensor<4xi32>) -> tensor<1x4xi32>
    %8 = stablehlo.broadcast_in_dim %arg0, dims = [0, 1] : (tensor<4x1xi32>) -> tensor<4x4xi32>
    %9 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<1x4xi32>) -> tensor<4x4xi32>
    %10 = stablehlo.compare GE, %8, %9, SIGNED : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>
    %11 = call @_where_2(%10, %1, %arg6) : (tensor<4x4xi1>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %12 = stablehlo.reduce(%11 init: %cst) applies stablehlo.maximum across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %13 = stablehlo.convert %arg9 : tensor<4xf32>
    %14 = stablehlo.maximum %13, %12 : tensor<4xf32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x4xf32>
    %17 = stablehlo.subtract %11, %16 : tensor<4x4xf32>
    %18 = stablehlo.exponential %17 : tensor<4x4xf32>
    %19 = stablehlo.convert %arg9 : tensor<4xf32>
    %20 = stablehlo.subtract %19, %14 : tensor<4xf32>
    %21 = stablehlo.exponential %20 : tensor<4xf32>
    %22 = stablehlo.multiply %arg10, %21 : tensor<4xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %23 = stablehlo.reduce(%18 init: %cst_0) applies stablehlo.add across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %24 = stablehlo.add %22, %23 : tensor<4xf32>
    %25 = stablehlo.broadcast_in_dim %21, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %26 = stablehlo.broadcast_in_dim %25, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x4xf32>
    %27 = stablehlo.multiply %arg11, %26 : tensor<4x4xf32>
    %28 = stablehlo.dot_general %18, %arg8, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %29 = stablehlo.add %27, %28 : tensor<4x4xf32>
    %30 = "stablehlo.collective_permute"(%arg7) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %31 = "stablehlo.collective_permute"(%arg8) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
    return %30, %31, %14, %24, %29, %0, %10, %18, %21, %25, %arg8 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xi1>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x1xf32>, tensor<4x4xf32>
  }
  func.func private @remainder_1(%arg0: tensor<i32>, %arg1: tensor<i32>, %arg2: tensor<i1>) -> tensor<i32> {
    %0 = stablehlo.remainder %arg0, %arg1 : tensor<i32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.compare NE, %0, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %2 = stablehlo.compare LT, %0, %c_0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %3 = stablehlo.compare NE, %2, %arg2, UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
    %4 = stablehlo.and %3, %1 : tensor<i1>
    %5 = stablehlo.add %0, %arg1 : tensor<i32>
    %6 = stablehlo.select %4, %5, %0 : tensor<i1>, tensor<i32>
    return %6 : tensor<i32>
  }
  func.func private @_where_2(%arg0: tensor<4x4xi1>, %arg1: tensor<4x4xf32>, %arg2: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<4x4xi1>, tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }
  func.func private @dynamic_update_index_in_dim(%arg0: tensor<2x4x4xf32>, %arg1: tensor<4x4xf32>, %arg2: tensor<i32>) -> tensor<2x4x4xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0 : (tensor<2x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x4x4xf32>
    return %1 : tensor<2x4x4xf32>
  }
  func.func private @dynamic_update_index_in_dim_3(%arg0: tensor<2x4x4xi1>, %arg1: tensor<4x4xi1>, %arg2: tensor<i32>) -> tensor<2x4x4xi1> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<4x4xi1>) -> tensor<1x4x4xi1>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0 : (tensor<2x4x4xi1>, tensor<1x4x4xi1>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x4x4xi1>
    return %1 : tensor<2x4x4xi1>
  }
  func.func private @dynamic_update_index_in_dim_4(%arg0: tensor<2x4xf32>, %arg1: tensor<4xf32>, %arg2: tensor<i32>) -> tensor<2x4xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c : (tensor<2x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    return %1 : tensor<2x4xf32>
  }
  func.func private @dynamic_update_index_in_dim_5(%arg0: tensor<2x4x1xf32>, %arg1: tensor<4x1xf32>, %arg2: tensor<i32>) -> tensor<2x4x1xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<4x1xf32>) -> tensor<1x4x1xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0 : (tensor<2x4x1xf32>, tensor<1x4x1xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x4x1xf32>
    return %1 : tensor<2x4x1xf32>
  }
  func.func private @dynamic_index_in_dim_6(%arg0: tensor<2x4x4xf32>, %arg1: tensor<i32>) -> tensor<4x4xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 4, 4] : (tensor<2x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    return %1 : tensor<4x4xf32>
  }
  func.func private @dynamic_index_in_dim_7(%arg0: tensor<2x4x4xi1>, %arg1: tensor<i32>) -> tensor<4x4xi1> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 4, 4] : (tensor<2x4x4xi1>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xi1>
    %1 = stablehlo.reshape %0 : (tensor<1x4x4xi1>) -> tensor<4x4xi1>
    return %1 : tensor<4x4xi1>
  }
  func.func private @dynamic_index_in_dim_8(%arg0: tensor<2x4xf32>, %arg1: tensor<i32>) -> tensor<4xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, sizes = [1, 4] : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @dynamic_index_in_dim_9(%arg0: tensor<2x4x1xf32>, %arg1: tensor<i32>) -> tensor<4x1xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 4, 1] : (tensor<2x4x1xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x1xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x4x1xf32>) -> tensor<4x1xf32>
    return %1 : tensor<4x1xf32>
  }
  func.func private @closed_call_10(%arg0: tensor<4x4xf32>, %arg1: tensor<4x4xf32>, %arg2: tensor<4x4xf32>, %arg3: tensor<4x4xf32>, %arg4: tensor<4x4xf32>, %arg5: tensor<4xf32>, %arg6: tensor<4x4xf32>, %arg7: tensor<4x4xf32>, %arg8: tensor<4x4xi1>, %arg9: tensor<4x4xf32>, %arg10: tensor<4xf32>, %arg11: tensor<4x1xf32>, %arg12: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>) {
    %0 = "stablehlo.collective_permute"(%arg4) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[1, 0], [0, 1]]> : tensor<2x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = "stablehlo.collective_permute"(%arg3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[1, 0], [0, 1]]> : tensor<2x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.dot_general %arg6, %arg9, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %4 = stablehlo.add %0, %3 : tensor<4x4xf32>
    %5 = stablehlo.dot_general %arg6, %arg12, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %6 = stablehlo.broadcast_in_dim %arg11, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x4xf32>
    %7 = stablehlo.multiply %arg6, %6 : tensor<4x4xf32>
    %8 = stablehlo.broadcast_in_dim %arg5, dims = [0] : (tensor<4xf32>) -> tensor<4x4xf32>
    %9 = stablehlo.add %5, %8 : tensor<4x4xf32>
    %10 = stablehlo.multiply %arg5, %arg10 : tensor<4xf32>
    %11 = stablehlo.multiply %9, %arg9 : tensor<4x4xf32>
    %12 = call @_where_11(%arg8, %arg1, %11) : (tensor<4x4xi1>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %13 = stablehlo.dot_general %12, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %14 = stablehlo.transpose %13, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %15 = stablehlo.dot_general %12, %arg7, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %16 = stablehlo.add %arg2, %15 : tensor<4x4xf32>
    %17 = stablehlo.transpose %14, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %18 = stablehlo.add %1, %17 : tensor<4x4xf32>
    return %16, %18, %4, %10, %7 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>
  }
  func.func private @_where_11(%arg0: tensor<4x4xi1>, %arg1: tensor<4x4xf32>, %arg2: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %1 = stablehlo.select %arg0, %arg2, %0 : tensor<4x4xi1>, tensor<4x4xf32>
    return %1 : tensor<4x4xf32>
  }
}
